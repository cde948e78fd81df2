"""Calls that a backward pass computes again, as `torch.utils.checkpoint` has it.

They have to be computed as they were in the forward pass. What began after that pass, or on another
thread, leaves them as they are. A function that was checkpointed inside a block remembers when and
where it was called first; of others autograd's numbers tell, which count the nodes of one thread in
the order of their making. What a checkpointed function depends on and has ended since is an error.
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
    """A time in the forward passes of a thread."""

    number: int
    """Of the next node of the thread's graphs."""
    thread: threading.Thread | None
    """None where it is not known."""


def now() -> Moment:
    """This moment on this thread."""
    number = torch._C._autograd._get_sequence_nr()  # noqa: SLF001 - torch has no public way
    return Moment(number, threading.current_thread())


def is_backward() -> bool:
    """Whether a node of a graph is computing its gradient on this thread."""
    return torch._C._current_autograd_node() is not None  # noqa: SLF001 - likewise


def is_on_thread_of_autograd() -> bool:
    """Whether this is a thread that autograd started, which has one for each device."""
    return is_backward() and isinstance(
        threading.current_thread(),
        threading._DummyThread,  # noqa: SLF001 - Python did not start it, for which it has no name
    )


def was_made_before(moment: Moment) -> bool:
    """Whether the call being made is computed again, and was first made before, or elsewhere."""
    first = _first_made()
    if first is None:
        return False
    return first.thread not in {None, moment.thread} or first.number < moment.number


def require_known() -> None:
    """Refuse to change a call that is computed again, where it may have been made elsewhere.

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
    """When the call being made was made first; None if that is now."""
    for function in _running():
        if function.first_called is not None:
            return function.first_called
    node = torch._C._current_autograd_node()  # noqa: SLF001 - likewise
    return None if node is None else Moment(node._sequence_nr(), None)  # noqa: SLF001 - likewise


def _is_checkpoint_of_torch() -> bool:
    """Whether it is torch's checkpoint, reentrant or not, that computes a call again."""
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
        self.first_called: Moment | None = None
        """When the first call began, once it has ended."""

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
        if self._met != self._conditions.keys():
            raise RecordError(
                "the backward pass computes attention calls again, but not as the block changed "
                "them in the forward pass; run the model without checkpoints"
            )
        return result

    def depends_on(self, source: object, holds: Callable[[], bool]) -> None:
        """Take note of what the current call depends on."""
        self._met.add(id(source))
        if self.first_called is None:
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
