"""Calls that a backward pass computes again, as `torch.utils.checkpoint` has it.

They have to be computed as they were in the forward pass. What began after that pass leaves them as
they are: autograd's numbers tell, which count its nodes in the order of their making. What a
checkpointed function depends on and has ended since is an error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from regard.errors import RecordError

CHECKPOINT = "torch.utils.checkpoint.checkpoint"

_this_thread = threading.local()


def now() -> int:
    """The number of the next node of this thread's graphs."""
    return torch._C._autograd._get_sequence_nr()  # noqa: SLF001 - torch has no public way


def is_backward() -> bool:
    """Whether a node of a graph is computing its gradient on this thread."""
    return torch._C._current_autograd_node() is not None  # noqa: SLF001 - likewise


def was_made_before(time: int) -> bool:
    """Whether the call being made is computed again, and was first made before a time of `now`."""
    node = torch._C._current_autograd_node()  # noqa: SLF001 - likewise
    return node is not None and node._sequence_nr() < time  # noqa: SLF001 - likewise


def depends_on(source: object, holds: Callable[[], bool]) -> None:
    """Take note of what the calls being made depend on, which has to hold where they are again.

    Args:
        source: what has an influence on them.
        holds: whether it would have the same now.
    """
    for function in _running():
        function.depends_on(source, holds)


class Checkpoints:
    """Takes the calls of `torch.utils.checkpoint.checkpoint` inside a block.

    Args:
        on_this_thread: makes a time in which the block sees the calls of the current thread.
    """

    def __init__(self, on_this_thread: Callable[[], AbstractContextManager[None]]) -> None:
        self._on_this_thread = on_this_thread

    def __call__(
        self,
        path: str,  # noqa: ARG002 - of a handler
        own: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Checkpoint a function that refuses to be called again under other conditions."""

        def checkpoint(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
            return own(_Checkpointed(function, self._on_this_thread), *args, **options)

        return checkpoint(*args, **kwargs)


class _Checkpointed:
    """A function that is called in the forward pass, and again in the backward pass."""

    def __init__(
        self,
        function: Callable[..., Any],
        on_this_thread: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._function = function
        self._on_this_thread = on_this_thread
        self._conditions: dict[int, tuple[object, Callable[[], bool]]] = {}
        """What the first call depended on, by its id."""
        self._met: set[int] = set()
        """What the latest call depended on."""
        self._was_called = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._was_called:
            with self._running():
                result = self._function(*args, **kwargs)
            self._was_called = True
            return result
        if not self._conditions:
            return self._function(*args, **kwargs)
        if not all(holds() for _, holds in self._conditions.values()):
            raise RecordError(
                "the backward pass computes attention calls again that were made inside a block of "
                "record, intervene or Monitor.update, but the block has ended; put the backward "
                "pass inside the block"
            )
        with self._on_this_thread(), self._running():
            result = self._function(*args, **kwargs)
        if self._met != self._conditions.keys():
            raise RecordError(
                "the backward pass computes attention calls again, but not as the block changed "
                "them in the forward pass; run the model without checkpoints"
            )
        return result

    def depends_on(self, source: object, holds: Callable[[], bool]) -> None:
        """Take note of what the current call depends on."""
        self._met.add(id(source))
        if not self._was_called:
            self._conditions[id(source)] = source, holds

    @contextmanager
    def _running(self) -> Iterator[None]:
        running = _running()
        running.append(self)
        self._met.clear()
        try:
            yield
        finally:
            running.remove(self)


def _running() -> list[_Checkpointed]:
    """The checkpointed functions that are being called on this thread, outermost first."""
    functions: list[_Checkpointed] | None = getattr(_this_thread, "functions", None)
    if functions is None:
        functions = _this_thread.functions = []
    return functions
