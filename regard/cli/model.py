"""The model of a command: opened by its name, run over a text, one head step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast

import click
import torch

from regard import models
from regard.cli.checks import MODEL_ERRORS, with_options
from regard.cli.errors import MisuseError, user_errors
from regard.errors import Error
from regard.gpt.outside import NOTE, is_outside
from regard.lens import Effects, LeadingHead, LogProbability, effects, leading_head, views
from regard.lens.naming.forward_pass import ForwardPass, LayerPass, join_layers, read_layer
from regard.lens.naming.heads import HeadScores
from regard.lens.sink_keys import resting
from regard.lens.view_names import VIEWS
from regard.models import LanguageModel
from regard.pattern import Pattern
from regard.record import Layer, RecordError
from regard.steps import Steps, explain_problem
from regard.view.entries import WEIGHTS, Entries
from regard.view.head_tables import FEW

if TYPE_CHECKING:
    from torch import Tensor

    from regard.models import Prompt

__all__ = [
    "about",
    "added_note",
    "describe",
    "entries_of",
    "has_read",
    "head_of_prediction",
    "head_steps",
    "needed_heads",
    "open_model",
    "prompt_of",
    "read",
    "require_next_token",
]

_LONGEST = 2048
"""Tokens of the longest text that a backward pass is run over."""


def open_model(
    name: str | None,
    *,
    fetch: bool,
    device: torch.device,
    weights: str | None = None,
    dtype: str | None = None,
) -> LanguageModel:
    """Open the model that ``--model`` names.

    Args:
        name: the model; None is the one that comes with regard.
        fetch: whether a model of the hub may be downloaded.
        device: the device to compute on.
        weights: the format of the matrices, as for `regard.gpt.load`.
        dtype: the dtype of the weights.

    Raises:
        MisuseError: if there is no such model, it is damaged, or an option does not fit it: what
            `require_model` cannot see.
    """
    with user_errors(*MODEL_ERRORS, rewrite=with_options):
        return models.open(
            name,
            fetch=fetch,
            device=device,
            weights=cast("Literal['int8', 'blocks'] | None", weights),
            dtype=dtype,
            announce=lambda line: click.echo(line, err=True),
        )


def prompt_of(
    model: LanguageModel,
    text: str,
    *,
    chat: bool = False,
    system: str | None = None,
    bos: bool = True,
) -> Prompt:
    """Return what the model reads of a text.

    Raises:
        MisuseError: for a character without a token, options that do not fit the model, and a text
            without tokens.
    """
    with user_errors(ValueError, rewrite=with_options):
        prompt = model.read(text, chat=chat, system=system, special=bos)
    if not prompt.ids:
        raise MisuseError("the text has no token: give at least one character")
    return prompt


def require_next_token(model: LanguageModel, command: str) -> None:
    """Refuse an encoder.

    Raises:
        MisuseError: for a model that has no next token.
    """
    if not model.predicts:
        raise MisuseError(
            f"{model.name} is an encoder, which has no next token, as regard {command} needs one: "
            "take a causal model, or regard explain"
        )


def read(model: LanguageModel, ids: Sequence[int], query: int) -> tuple[ForwardPass, Tensor | None]:
    """Run the model over a text, score its heads, and predict what follows one token.

    Each layer is read while the model runs, so that the text may have any length.

    Returns:
        The forward pass, and the logits after the token, ``(V,)``; None for an encoder.

    Raises:
        MisuseError: for attention that cannot be recorded.
    """
    tokens, queries = model.tokenizer.tokens(list(ids)), [query]

    def look(layer: Layer) -> LayerPass:
        return read_layer(_of_one_text(layer.pattern), layer.index, tokens, queries)

    with user_errors(RecordError):
        layers, logits = model.read_layers(torch.tensor(ids, device=model.device), look, query)
    result = join_layers(
        tokens,
        [one for _, one in layers],
        None if logits is None else logits[None].float(),
        name=model.tokenizer.tokens,
        queries=queries,
    )
    return result, logits


def _of_one_text(pattern: Pattern) -> Pattern:
    return pattern[0] if pattern.ndim == 4 else pattern


def needed_heads(
    model: LanguageModel, heads: int, ids: Sequence[int], logits: Tensor | None
) -> Effects | None:
    """Estimate what each of many heads does for a text's likeliest next token, to first order.

    None for a model of few heads, which are all shown, for an encoder, and for a long text, since
    the backward pass keeps the activations of every token.

    Args:
        model: the model.
        heads: how many it has.
        ids: the text.
        logits: after its last token; None for an encoder.
    """
    if heads <= FEW or logits is None or len(ids) > _LONGEST:
        return None
    text, target = torch.tensor(ids, device=model.device), LogProbability(int(logits.argmax()))
    return effects(model, text, target, method="gradient", progress=False)


def head_of_prediction(
    model: LanguageModel, ids: Sequence[int], logits: Tensor | None
) -> LeadingHead | str | None:
    """Find the head that writes a text's likeliest next token.

    Args:
        model: the model.
        ids: the text.
        logits: after its last token; None for an encoder.

    Returns:
        The head; why it can't be found; None for an encoder, and for a text too long to run again.
    """
    if logits is None or len(ids) > _LONGEST:
        return None
    try:
        return leading_head(model, ids, logits)
    except Error as error:
        return str(error).partition(":")[0]


def added_note(prompt: Prompt) -> list[str]:
    """Say how many tokens the user did not write, if there are any; in a list of lines."""
    count = sum(prompt.added)
    if not count:
        return []
    said = "the chat template's, in grey" if prompt.roles else "added by the tokenizer, in grey"
    return [f"{count} of the {len(prompt)} tokens {'is' if count == 1 else 'are'} {said}"]


def entries_of(model: LanguageModel, ids: Sequence[int], query: int, view: str) -> Entries:
    """Return what is shown of keys: weights, or for another view a run over the text.

    The answer is the likeliest token after the query: the text is read up to it.

    Raises:
        MisuseError: for a view that there is not of this model or text.
    """
    if view == "weight":
        return WEIGHTS
    end = query + 1 if view == "toward" else len(ids)
    text = torch.tensor(list(ids[:end]), device=model.device)
    with user_errors(RecordError):
        seen = views(model, text)

    def read_head(head: HeadScores) -> Tensor:
        with user_errors(Error, rewrite=f"--view {view}: {{}}".format):
            return seen.of(view, head.layer, head=head.head).dense().cpu()

    return Entries(VIEWS[view], read_head)


def head_steps(
    model: LanguageModel,
    ids: Sequence[int],
    layer: int,
    head: int,
    *,
    without_sink: bool = False,
) -> Steps:
    """Compute one head's attention on a text, step by step, with or without its sink keys.

    Raises:
        MisuseError: for a layer whose values are not seen.
    """
    done = model.record(torch.tensor(ids, device=model.device), layers=[layer])
    values = done.values_of(0)
    if values is None:
        raise MisuseError(
            f"the values of layer {layer} of {model.name} are not seen: leave out --head"
        )
    pattern = _of_one_text(done.layers[0].pattern)[head]
    if without_sink:
        pattern = pattern.without(resting(pattern))
    problem = pattern.problem
    return explain_problem(replace(problem, value=values[head][None, None]))


def about(
    model: LanguageModel, result: ForwardPass, ids: Sequence[int], query: int
) -> Iterator[str]:
    """Yield lines on a model, and on how well it predicts the token after one token.

    Args:
        model: the model.
        result: its forward pass over the text.
        ids: the token ids of the text.
        query: index of the token.
    """
    yield f"{model.name}: {describe(model, result)}"
    if not model.is_own:
        yield from model.remarks
    if not result.predictions:
        return
    (_, probability), *_ = result.predictions[query]
    note = has_read(model, ids, probability)
    if note is not None:
        yield note


def has_read(model: LanguageModel, ids: Sequence[int], probability: float = 0.0) -> str | None:
    """Describe a model's training text, or that a text is unlike it; None if it is unknown.

    Args:
        model: the model.
        ids: the token ids of the text.
        probability: probability of the answer, as for `is_outside`.
    """
    if model.has_read is not None and is_outside(cast("Any", model.module), ids, probability):
        return NOTE
    return model.has_read


def describe(model: LanguageModel, result: ForwardPass) -> str:
    """Describe a model's shape in a line: '4 layers × 6 heads, context 256'."""
    heads = max(len(layer.heads) for layer in result.layers)
    layers = f"{len(result.layers)} layer{'s' if len(result.layers) > 1 else ''}"
    shape = f"{layers} × {heads} head{'s' if heads > 1 else ''}"
    return shape if model.context is None else f"{shape}, context {model.context}"
