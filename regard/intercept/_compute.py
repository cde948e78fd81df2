"""Computing a call, as interventions change it or together with readouts of its weights.

Axes: B batch, H query heads, L queries, Dv head dimension of value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from regard._tensors import flat
from regard.backends import choose_checked, run
from regard.inputs import Problem
from regard.intercept._call import Call
from regard.intercept._mask_reduction import MaskReducer


@dataclass(frozen=True, eq=False, kw_only=True)
class CallChange:
    """What an intervention computes in place of a call."""

    problem: Problem | None = None
    """The attention to compute instead; None leaves it to the model's own kernel."""
    edit: Callable[[Tensor], Tensor] | None = None
    """Function applied to the context ``(B, H, L, Dv)``."""


@runtime_checkable
class CallChanger(Protocol):
    """Changes the calls of a model."""

    def change(self, call: Call) -> CallChange | None:
        """Return what is computed in place of a call; None leaves it unchanged."""

    def may_change(self, modules: Sequence[nn.Module], run: int) -> bool:
        """Return whether the innermost module's next call may be changed."""


def edited(
    context: Tensor, leading: tuple[int, ...], edits: list[Callable[[Tensor], Tensor]]
) -> Tensor:
    """Apply functions to a context, reshaped to ``(B, H, L, Dv)`` and back."""
    batch, count = flat(leading)
    rows = batch * count
    queries = context.shape[:-1].numel() // rows if rows else context.shape[-2]
    heads = context.reshape(batch, count, queries, context.shape[-1])
    for edit in edits:
        heads = edit(heads)
    return heads.reshape(context.shape)


@runtime_checkable
class Interceptor(Protocol):
    """Receives intercepted calls, and passes them to interventions and observers."""

    reducer: MaskReducer

    @property
    def module(self) -> nn.Module | None:
        """The innermost `nn.Module` being called."""

    @property
    def is_needed(self) -> bool:
        """Whether the current call belongs to a block."""

    @property
    def needs_output(self) -> bool:
        """True if any hook needs the attention output, so it is computed here."""

    @property
    def changes(self) -> bool:
        """Whether there are interventions for the current call."""

    @property
    def reads(self) -> bool:
        """Whether an observer takes readouts, which can share a pass with the context."""

    def recomputing(self) -> AbstractContextManager[None]:
        """Context manager in which calls are changed but not observed, for recomputation."""

    def changed(self, call: Call) -> tuple[Call, list[Callable[[Tensor], Tensor]]]:
        """Apply interventions: return the changed call, and functions to apply to its context."""

    def may_change_inside(self, module: nn.Module) -> bool:
        """Return whether contexts inside a torch module are observed or may be changed."""

    def notify(self, call: Call) -> None:
        """Pass a call to all observers."""


def computed(
    interceptor: Interceptor, call: Call, own: Callable[[], Tensor], backend: str | None = None
) -> tuple[Tensor, Problem | None]:
    """Compute a call under interventions; return the context, and the attention if changed."""
    call, edits = interceptor.changed(call)
    context = own() if call.changed is None else run_call(call, call.changed, backend)
    if edits:
        context = edited(context, tuple(call.query.shape[:-2]), edits)
    interceptor.notify(call)
    return context, call.changed


def run_call(call: Call, problem: Problem, backend: str | None = None) -> Tensor:
    """Compute a problem, possibly in a wider dtype, and cast the context to the call's dtype."""
    context = problem.restore(run(problem, choose_checked(problem, backend))[0])
    return context.to(call.query.dtype)


def gradients(interceptor: Interceptor) -> AbstractContextManager[object]:
    """Build an autograd graph only if the call may be recomputed."""
    if interceptor.needs_output or not torch.is_grad_enabled():
        return nullcontext()
    return torch.no_grad()
