"""Recomputation of calls in a backward pass, as by `torch.utils.checkpoint`.

Recomputed calls must be equal to those of the forward pass, so blocks that began after it, or on
another thread, must not affect them. A function checkpointed inside a block stores when and where
it was first called; for others autograd's sequence numbers, which count the nodes of a thread, give
the time. If a block that affected a checkpointed function has ended, recomputation is an error.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from regard.errors import RecordError

CHECKPOINT = "torch.utils.checkpoint.checkpoint"

_this_thread = threading.local()


@dataclass(frozen=True, eq=False)
class Moment:
    """A point in time in the forward passes of a thread."""

    number: int
    """Sequence number of the next autograd node of the thread."""
    thread: threading.Thread | None
    """None if it is not known."""


def now() -> Moment:
    """Return the current moment on this thread."""
    number = torch._C._autograd._get_sequence_nr()  # noqa: SLF001 - torch has no public way
    return Moment(number, threading.current_thread())


def is_backward() -> bool:
    """Return whether a backward pass is running on this thread."""
    return torch._C._current_autograd_node() is not None  # noqa: SLF001 - likewise


def is_on_thread_of_autograd() -> bool:
    """Return whether this is one of autograd's device threads."""
    return is_backward() and isinstance(
        threading.current_thread(),
        threading._DummyThread,  # noqa: SLF001 - Python did not start it, for which it has no name
    )


def was_made_before(moment: Moment) -> bool:
    """Return whether the current call recomputes one made before, or on another thread."""
    first = _first_made()
    if first is None:
        return False
    return first.thread not in {None, moment.thread} or first.number < moment.number


def require_known() -> None:
    """Refuse to change a recomputed call whose origin is not known.

    Raises:
        RecordError: if torch's checkpoint was not called inside a block of this thread.
    """
    first = _first_made()
    if first is not None and first.thread is None and _is_checkpoint_of_torch():
        raise RecordError(
            "the backward pass computes attention calls again inside a block, and whether they "
            "were first made there cannot be known, since torch.utils.checkpoint was called on "
            "another thread, or not by its function checkpoint; put the backward pass outside the "
            "block, or call checkpoint(...) inside it, on its thread"
        )


def _first_made() -> Moment | None:
    """Return when the current call was first made; None if it is not recomputed."""
    for function in _running():
        if function.first_called is not None:
            return function.first_called
    node = torch._C._current_autograd_node()  # noqa: SLF001 - likewise
    return None if node is None else Moment(node._sequence_nr(), None)  # noqa: SLF001 - likewise


def _is_checkpoint_of_torch() -> bool:
    """Return whether torch's checkpoint, reentrant or not, recomputes the current call."""
    node = torch._C._current_autograd_node()  # noqa: SLF001 - likewise
    module = CHECKPOINT.rpartition(".")[0]
    if getattr(getattr(node, "_forward_cls", None), "__module__", None) == module:
        return True
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "unpack_hook" and frame.f_globals.get("__name__") == module:
            return True
        frame = frame.f_back
    return False


def depends_on(source: object, holds: Callable[[], bool]) -> None:
    """Register a condition of the current calls, which must hold again on recomputation.

    Args:
        source: the object that affects the calls.
        holds: returns whether it would have the same effect now.
    """
    for function in _running():
        function.depends_on(source, holds)


class Checkpoints:
    """Handles calls of `torch.utils.checkpoint.checkpoint` inside a block.

    Args:
        on_this_thread: returns a context manager in which the block intercepts the current thread.
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
        """Checkpoint a function that raises if it is recomputed under other conditions."""

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
        """Conditions of the first call, by id of their source."""
        self._used: set[int] = set()
        """Ids of the sources that affected the latest call."""
        self.first_called: Moment | None = None
        """When the first call began; None until it has ended."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.first_called is None:
            begin = _first_made() or now()
            with self._running():
                result = self._function(*args, **kwargs)
            self.first_called = begin
            return result
        if not all(holds() for _, holds in self._conditions.values()):
            elsewhere = self.first_called.thread not in {None, threading.current_thread()}
            where = (
                "on another thread than the block"
                if elsewhere and not is_on_thread_of_autograd()
                else "after the end of the block, or in another task"
            )
            raise RecordError(
                "the backward pass computes attention calls again that were made inside a block of "
                f"record, intervene or Monitor.update, but runs {where}; put the backward pass "
                "inside the block, on its thread and in its task"
            )
        with self._on_this_thread() if self._conditions else nullcontext(), self._running():
            result = self._function(*args, **kwargs)
        if self._used != self._conditions.keys():
            raise RecordError(
                "the backward pass computes attention calls again, but not as the block changed "
                "them in the forward pass; run the model without checkpoints"
            )
        return result

    def depends_on(self, source: object, holds: Callable[[], bool]) -> None:
        """Register a condition of the current call."""
        self._used.add(id(source))
        if self.first_called is None:
            self._conditions[id(source)] = source, holds

    @contextmanager
    def _running(self) -> Iterator[None]:
        running = _running()
        running.append(self)
        self._used.clear()
        try:
            yield
        finally:
            running.remove(self)


def _running() -> list[_Checkpointed]:
    """Return the checkpointed functions running on this thread, outermost first."""
    functions: list[_Checkpointed] | None = getattr(_this_thread, "functions", None)
    if functions is None:
        functions = _this_thread.functions = []
    return functions
