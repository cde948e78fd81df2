"""Taking readouts of the calls that a model makes: with their contexts, where those are pending."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from regard.inputs import Problem
from regard.intercept import Call, PendingContext
from regard.pattern.reading import take
from regard.pattern.readout import Readout, Sizes


class CallReader:
    """Takes the readouts of the call that is being observed."""

    def __init__(self) -> None:
        self._pending: PendingContext | None = None

    def observing(self, observer: Callable[[Call], None]) -> Callable[[Call], None]:
        """Make an observer during whose calls readouts are taken with the context."""

        def observe(call: Call) -> None:
            self._pending = call.pending
            try:
                observer(call)
            finally:
                self._pending = None

        return observe

    def take(
        self, readouts: Sequence[Readout[Any, Any]], problem: Problem, sizes: Sizes
    ) -> tuple[Any, ...]:
        """Take readouts of a call, or of a part of it."""
        if self._pending is not None and self._pending.is_of(problem):
            return self._pending.take(readouts)
        return take(readouts, problem, sizes)
