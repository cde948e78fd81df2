"""A model run over a text, and one head's attention step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

import regard
from regard.record.forward_pass import ForwardPass, forward_pass

if TYPE_CHECKING:
    from regard.gpt import GPT, GPTConfig, Tokenizer
    from regard.gpt.model import Attention

__all__ = ["SHIPPED", "describe", "head_steps", "read"]

SHIPPED = "the model that comes with regard"


def read(model: GPT, tokenizer: Tokenizer, ids: Sequence[int]) -> ForwardPass:
    """Run the model over a text and score its heads."""
    text = torch.tensor(ids, device=model.wte.weight.device)
    with torch.inference_mode():
        logits, patterns = model.with_patterns(text)
    return forward_pass(text, patterns, logits, name=tokenizer.tokens)


def head_steps(model: GPT, ids: Sequence[int], layer: int, head: int) -> regard.Steps:
    """Write out one head's attention on a text, step by step.

    Query, key and value are the layer's own projections of its input.
    """
    attention = cast("Attention", model.h[layer].attn)
    projections: list[tuple[Tensor, ...]] = []

    def project(_: object, inputs: tuple[Tensor, ...], options: dict[str, Any]) -> None:
        projections.append(attention.project(inputs[0], options["rotation"]))

    hook = attention.register_forward_pre_hook(project, with_kwargs=True)
    with torch.inference_mode():
        model(torch.tensor(ids, device=model.wte.weight.device))
    hook.remove()
    query, key, value = projections[0]  # (H, T, D), (G, T, D), (G, T, D)
    group = head // (attention.heads // attention.groups)
    return regard.explain(query[head], key[group], value[group], mask=attention.mask)


def describe(config: GPTConfig) -> str:
    """A model's shape in a line.

    >>> from regard.gpt import GPTConfig
    >>> describe(GPTConfig(layers=4, heads=6, dim=12, context=256))
    '4 layers × 6 heads, context 256'
    """
    layers = f"{config.layers} layer{'s' if config.layers > 1 else ''}"
    heads = f"{config.heads} head{'s' if config.heads > 1 else ''}"
    return f"{layers} × {heads}, context {config.context}"
