"""The effect of switching a head off at a position, to first order: one backward pass a window.

Axes: N heads of all layers, H heads of a layer, T tokens, Dv dimension of a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from regard._modules import of_this_thread
from regard._shapes import Float

__all__ = ["LONGEST", "head_effects"]

LONGEST = 1024
"""Tokens of a window over which a backward pass is run: its graph is kept in memory."""


def head_effects(model: Any, ids: Sequence[int], heads: Sequence[int]) -> Float[Tensor, "N T"]:
    """Return the effect of each head at each position on a text's log-probability, in nats.

    To first order: −⟨g, o⟩, where o is what the head gives W_O at the position, and g the gradient
    of the summed log-probability of all next tokens by it: attribution patching with zero (Nanda
    2023, "Attribution Patching"; Syed et al. 2023, arXiv:2310.10348, equation 1). Beyond the first
    `LONGEST` tokens it is NaN, and at the last position, which predicts nothing.

    Args:
        model: a `regard.models.LanguageModel` with a next token and known W_O.
        ids: the text, two tokens or more.
        heads: number of heads of each layer that has some.
    """
    read = torch.tensor(list(ids[:LONGEST]), device=model.device)
    outputs = [
        model.module.get_submodule(block.output)
        for block in model.places.blocks
        if block.attention is not None and block.output is not None
    ]
    kept: list[Tensor] = []

    def keep(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        taken = args[0] if args[0].requires_grad else args[0].detach().requires_grad_()
        kept.append(taken)
        return taken, *args[1:]

    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        stack.enter_context(_frozen(model.module))
        for output in outputs:
            stack.callback(output.register_forward_pre_hook(of_this_thread(keep)).remove)
        logits = model(read)
        total = -torch.nn.functional.cross_entropy(logits[:-1].float(), read[1:], reduction="sum")
        gradients = torch.autograd.grad(total, kept, allow_unused=True)
    rows = []
    for taken, gradient, count in zip(kept, gradients, heads, strict=True):
        by = torch.zeros_like(taken) if gradient is None else -gradient * taken.detach()
        by = by.detach().flatten(0, -2).unflatten(-1, (count, -1)).double().sum(-1)
        rows.append(by.T.cpu())
    effects = torch.cat(rows)
    effects[:, -1] = torch.nan
    missing = len(ids) - effects.shape[1]
    return torch.nn.functional.pad(effects, (0, missing), value=torch.nan)


@contextmanager
def _frozen(module: nn.Module) -> Iterator[None]:
    """Leave parameters out of the graph, whose gradients would take memory."""
    parameters = [one for one in module.parameters() if one.requires_grad]
    for parameter in parameters:
        parameter.requires_grad_(False)  # noqa: FBT003 - torch's own signature
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)  # noqa: FBT003 - likewise
