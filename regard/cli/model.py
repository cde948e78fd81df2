"""The model of a command: found by its name, run over a text, one head step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
import typer
from torch import Tensor

import regard
from regard.cli.arguments import SHIPPED
from regard.cli.errors import MisuseError, user_errors
from regard.gpt import CheckpointError, load
from regard.gpt.hub import model_folder
from regard.gpt.outside import NOTE, is_outside
from regard.lens.naming.forward_pass import ForwardPass, forward_pass

if TYPE_CHECKING:
    from regard.gpt import GPT, GPTConfig, Tokenizer
    from regard.gpt.layers import Attention

__all__ = [
    "about",
    "describe",
    "folder_of",
    "has_read",
    "head_steps",
    "open_model",
    "read",
    "weights_of",
]


def open_model(
    name: str | None, *, fetch: bool, device: torch.device, weights: str | None = None
) -> tuple[GPT, Tokenizer]:
    """Load the model that ``--model`` names, and its tokenizer.

    Args:
        name: the model; None is the one that comes with regard.
        fetch: whether a model of the hub may be downloaded.
        device: the device to compute on.
        weights: the format of the matrices, as for `regard.gpt.load`.

    Raises:
        MisuseError: if there is no such model, it is damaged, or `weights` is not supported.
    """
    kept = weights_of(weights, device)
    folder = folder_of(name, fetch=fetch)
    with user_errors(CheckpointError, OSError):
        return load(folder, device=device, weights=kept)


def weights_of(weights: str | None, device: torch.device) -> Literal["int8"] | None:
    """Convert ``--weights`` to the argument of `regard.gpt.load`.

    Raises:
        MisuseError: if they are not supported, in general or on this device.
    """
    if weights not in {None, "int8"}:
        raise MisuseError(f"--weights is {weights!r}: expected int8; leave it out for float32")
    if weights is not None and device.type != "cpu":
        raise MisuseError(
            f"--weights {weights} is computed on a CPU, and --device is {device}: leave out one"
        )
    return cast('Literal["int8"] | None', weights)


def folder_of(name: str | None, *, fetch: bool) -> Path | None:
    """Return the folder of ``--model``; a model of the hub is downloaded if `fetch` is true.

    None without a name: the model that comes with regard.

    Raises:
        MisuseError: if there is no such model, or `fetch` is true without a name.
    """
    if name is None:
        if fetch:
            raise MisuseError("--fetch needs the name of a model: add --model NAME")
        return None
    with user_errors(CheckpointError, OSError, rewrite=_with_options):
        return model_folder(name, fetch=fetch, announce=lambda line: typer.echo(line, err=True))


def _with_options(message: str) -> str:
    return message.replace("fetch=True", "--fetch")


def read(model: GPT, tokenizer: Tokenizer, ids: Sequence[int]) -> ForwardPass:
    """Run the model over a text and score its heads."""
    text = torch.tensor(ids, device=model.device)
    with torch.inference_mode():
        logits, patterns = model.with_patterns(text)
    return forward_pass(text, patterns, logits, name=tokenizer.tokens)


def head_steps(model: GPT, ids: Sequence[int], layer: int, head: int) -> regard.steps.Steps:
    """Compute one head's attention on a text, step by step.

    Query, key and value are the layer's projections of its input.
    """
    attention = cast("Attention", model.h[layer].attn)
    projections: list[tuple[Tensor, ...]] = []

    def project(_: object, inputs: tuple[Tensor, ...], options: dict[str, Any]) -> None:
        projections.append(attention.project(inputs[0], options["rotation"]))

    hook = attention.register_forward_pre_hook(project, with_kwargs=True)
    with torch.inference_mode():
        model(torch.tensor(ids, device=model.device))
    hook.remove()
    query, key, value = projections[0]  # (H, T, D), (G, T, D), (G, T, D)
    group = head // (attention.heads // attention.groups)
    return regard.explain(query[head], key[group], value[group], mask=attention.mask)


def about(
    name: str | None, model: GPT, result: ForwardPass, ids: Sequence[int], query: int
) -> Iterator[str]:
    """Yield lines on a model, and on how well it predicts the token after one token.

    Args:
        name: the value of ``--model``; None is the model that comes with regard.
        model: the model.
        result: its forward pass over the text.
        ids: the token ids of the text.
        query: index of the token.
    """
    yield f"{name or SHIPPED}: {describe(model.config)}"
    (_, probability), *_ = result.predictions[query]
    note = has_read(model, ids, probability)
    if note is not None:
        yield note


def has_read(model: GPT, ids: Sequence[int], probability: float = 0.0) -> str | None:
    """Describe a model's training text, or that a text is unlike it; None if it is unknown.

    Args:
        model: the model.
        ids: the token ids of the text.
        probability: probability of the answer, as for `is_outside`.
    """
    if model.has_read is not None and is_outside(model, ids, probability):
        return NOTE
    return model.has_read


def describe(config: GPTConfig) -> str:
    """Describe a model's shape in a line.

    >>> from regard.gpt import GPTConfig
    >>> describe(GPTConfig(layers=4, heads=6, dim=12, context=256))
    '4 layers × 6 heads, context 256'
    """
    layers = f"{config.layers} layer{'s' if config.layers > 1 else ''}"
    heads = f"{config.heads} head{'s' if config.heads > 1 else ''}"
    return f"{layers} × {heads}, context {config.context}"
