"""What an intervention makes of one attention call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from regard._tensors import flat
from regard.inputs import Problem
from regard.intercept._call import Call


@dataclass(frozen=True, eq=False, kw_only=True)
class Change:
    """What is computed in place of a call."""

    problem: Problem | None = None
    """The attention in its place; None: the call's own, by the model's own kernel."""
    edit: Callable[[Tensor], Tensor] | None = None
    """What becomes of its context ``(B, H, L, Dv)``."""


@runtime_checkable
class Changer(Protocol):
    """Changes the calls of a model."""

    def change(self, call: Call) -> Change | None:
        """Say what is computed in place of a call; None leaves it as it is."""

    def may_change(self, modules: Sequence[nn.Module], run: int) -> bool:
        """Whether the next call of the innermost of these modules may be changed."""


def edited(
    context: Tensor, leading: tuple[int, ...], edits: list[Callable[[Tensor], Tensor]]
) -> Tensor:
    """Edit a context of these leading dimensions, whatever its shape is."""
    batch, count = flat(leading)
    rows = batch * count
    queries = context.shape[:-1].numel() // rows if rows else context.shape[-2]
    heads = context.reshape(batch, count, queries, context.shape[-1])
    for edit in edits:
        heads = edit(heads)
    return heads.reshape(context.shape)
