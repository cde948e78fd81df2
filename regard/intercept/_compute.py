"""Computing a call as interventions change it.

Axes: B batch, H query heads, L queries, Dv head dimension of value.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from regard.backends import choose_checked, run
from regard.inputs import Problem
from regard.intercept._call import Call
from regard.intercept._change import edited
from regard.intercept._mask_reduction import MaskReducer


@runtime_checkable
class Monitor(Protocol):
    """Where the calls that are seen are brought."""

    reducer: MaskReducer
    modules_seen: int
    """How many modules were loaded when `see_imports` last saw all of them; −1: not all yet."""

    @property
    def module(self) -> nn.Module | None:
        """The innermost module being called."""

    @property
    def is_needed(self) -> bool:
        """Whether the call that is being made belongs to a block."""

    @property
    def takes_part(self) -> bool:
        """Whether contexts are changed or observed, which calls are computed for here."""

    @property
    def changes(self) -> bool:
        """Whether there are interventions."""

    @property
    def reads(self) -> bool:
        """Whether an observer takes readouts, which may share a pass with the context."""

    def recomputing(self) -> AbstractContextManager[None]:
        """A time in which calls are changed and not observed, as they were made before."""

    def changed(self, call: Call) -> tuple[Call, list[Callable[[Tensor], Tensor]]]:
        """Let interventions change a call: what it became, and what becomes of its context."""

    def may_change_inside(self, module: nn.Module) -> bool:
        """Whether contexts inside a module of torch's are observed, or may be changed."""

    def see_imports(self) -> None:
        """See functions of libraries and the compiler, where they were imported since."""

    def notify(self, call: Call) -> None:
        """Hand a call to all observers."""


def computed(
    monitor: Monitor, call: Call, own: Callable[[], Tensor], backend: str | None = None
) -> tuple[Tensor, Problem | None]:
    """Compute a call as interventions change it: its context, and the attention if changed."""
    call, edits = monitor.changed(call)
    context = own() if call.changed is None else run_call(call, call.changed, backend)
    if edits:
        context = edited(context, tuple(call.query.shape[:-2]), edits)
    monitor.notify(call)
    return context, call.changed


def run_call(call: Call, problem: Problem, backend: str | None = None) -> Tensor:
    """Compute a call by a problem, whose dtype may be wider: that of another run's weights."""
    context = problem.restore(run(problem, choose_checked(problem, backend))[0])
    return context.to(call.query.dtype)


def gradients(monitor: Monitor) -> AbstractContextManager[object]:
    """A graph is needed only of calls that may be computed here."""
    if monitor.takes_part or not torch.is_grad_enabled():
        return nullcontext()
    return torch.no_grad()
