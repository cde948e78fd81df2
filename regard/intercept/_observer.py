"""Observing and changing the attention calls that are made on this thread, by the blocks there.

A torch function mode sees torch's calls, and replaced functions those of other libraries; hooks
that torch runs around every module name the caller. All are installed only while there are
observers or interventions, and compiled code runs eagerly as long.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from torch import Tensor, nn
from torch.nn.modules import module as torch_modules

from regard._contexts import transforms, unwrapped, without_transforms
from regard.intercept._blocks import Block, open_block
from regard.intercept._eager import EagerCode, require_no_graph
from regard.intercept._function_mode import FunctionMode
from regard.intercept._functions import FunctionCalls
from regard.intercept._fused import FORWARDS, FusedLayers
from regard.intercept._library_calls import READERS, LibraryCalls
from regard.intercept._mask_reduction import MaskReducer
from regard.intercept._recomputation import (
    CHECKPOINT,
    Checkpoints,
    depends_on,
    require_known,
)
from regard.intercept._transforms import outside_transforms

if TYPE_CHECKING:
    from regard.intercept._call import Call
    from regard.intercept._change import Changer

    Observer = Callable[[Call], None]
    ContextObserver = Callable[[Call, Tensor], None]

T = TypeVar("T")

_this_thread = threading.local()


@contextmanager
def observe_calls(observer: Observer, *, reads: bool = False) -> Iterator[None]:
    """Pass every attention call of this thread to the observer, as interventions changed it.

    Args:
        observer: called with each, after its context was computed.
        reads: whether it takes readouts: it is then called before that, where it may have the
            context computed with them, see `Call.pending`.
    """
    with (
        _monitor() as monitor,
        monitor.observers.added(observer),
        monitor.readers.added(observer) if reads else nullcontext(),
    ):
        yield


@contextmanager
def observe_contexts(observer: ContextObserver) -> Iterator[None]:
    """Pass the context ``(B, H, L, Dv)`` of every call to the observer, before the call itself."""
    with _monitor() as monitor, monitor.context_observers.added(observer):
        yield


@contextmanager
def change_calls(changer: Changer) -> Iterator[None]:
    """Let every attention call of this thread be changed, after the interventions around it."""
    with _monitor() as monitor, monitor.changers.added(changer):
        yield


@contextmanager
def _monitor() -> Iterator[_CallMonitor]:
    """This thread's monitor, which runs as long as anyone needs it."""
    monitor: _CallMonitor | None = getattr(_this_thread, "monitor", None)
    if monitor is None or monitor.users == 0:  # it may have ended on another thread
        require_no_graph()
        monitor = _CallMonitor()
        try:
            monitor.start()
        except BaseException:
            monitor.stop()
            raise
        _this_thread.monitor = monitor
    monitor.users += 1
    try:
        yield monitor
    finally:
        monitor.users -= 1
        if monitor.users == 0:
            monitor.stop()
            if getattr(_this_thread, "monitor", None) is monitor:  # else it ends on another thread
                del _this_thread.monitor


def is_observed() -> bool:
    """Whether the attention calls that are made here are observed."""
    monitor: _CallMonitor | None = getattr(_this_thread, "monitor", None)
    return monitor is not None and monitor.is_needed


class _OfBlocks(Generic[T]):
    """What blocks brought along, each for the calls that belong to it."""

    def __init__(self) -> None:
        self._all: list[tuple[Block, T]] = []

    @contextmanager
    def added(self, one: T) -> Iterator[None]:
        """Begin a block that brings one along."""
        with open_block() as block:
            entry = block, one
            self._all.append(entry)
            try:
                yield
            finally:
                self._all.remove(entry)

    def __iter__(self) -> Iterator[T]:
        """Those for the call that is being made."""
        return (one for block, one in self._all if block.holds())

    def __bool__(self) -> bool:
        return any(block.holds() for block, _ in self._all)


@dataclass(eq=False, slots=True)
class _ActiveModule:
    """A module that is being called."""

    module: nn.Module
    frame: FrameType | None


class _CallMonitor:
    """The modules being called on one thread, and what observes and changes their calls."""

    def __init__(self) -> None:
        self.users = 0
        self.observers: _OfBlocks[Observer] = _OfBlocks()
        self.readers: _OfBlocks[Observer] = _OfBlocks()
        """Those of the observers that take readouts."""
        self.context_observers: _OfBlocks[ContextObserver] = _OfBlocks()
        self.changers: _OfBlocks[Changer] = _OfBlocks()
        self.reducer = MaskReducer()
        self._thread = threading.get_ident()
        self._modules: list[_ActiveModule] = []
        self.modules_seen = -1
        self._runs = -1
        self._before: Call | None = None
        self._mode = FunctionMode(self)
        self._eager = EagerCode()
        self._functions = FunctionCalls(
            dict.fromkeys(READERS, LibraryCalls(self, self._mode, self._eager))
            | dict.fromkeys(FORWARDS, FusedLayers(self, self._mode))
            | {CHECKPOINT: Checkpoints(self.on_this_thread)}
        )
        self._installed = ExitStack()

    def start(self) -> None:
        self._eager.force()
        self._installed.callback(self._eager.release)
        entering = torch_modules.register_module_forward_pre_hook(self._enter)
        self._installed.callback(entering.remove)
        leaving = torch_modules.register_module_forward_hook(self._leave, always_call=True)
        self._installed.callback(leaving.remove)
        self._installed.callback(self._functions.stop)
        self._functions.start()
        self._installed.enter_context(self._mode)

    def stop(self) -> None:
        self._before = None  # hooks and mode refer to this object, which is freed some time later
        self._installed.close()

    @property
    def module(self) -> nn.Module | None:
        """The innermost module being called."""
        return self._modules[-1].module if self._modules else None

    @property
    def is_needed(self) -> bool:
        """Whether the call that is being made belongs to a block."""
        return bool(self.observers or self.context_observers or self.changers)

    @property
    def takes_part(self) -> bool:
        """Whether contexts are changed or observed, which calls are computed for here."""
        return bool(self.changers or self.context_observers)

    @property
    def changes(self) -> bool:
        """Whether there are interventions."""
        return bool(self.changers)

    @property
    def reads(self) -> bool:
        """Whether an observer takes readouts, which may share a pass with the context."""
        return bool(self.readers)

    @contextmanager
    def recomputing(self) -> Iterator[None]:
        """A time in which calls are changed and not observed, as they were made before."""
        observers = self.observers, self.context_observers
        self.observers, self.context_observers = _OfBlocks(), _OfBlocks()
        try:
            yield
        finally:
            self.observers, self.context_observers = observers

    @contextmanager
    def on_this_thread(self) -> Iterator[None]:
        """A time in which the calls of the current thread are seen instead of its own.

        Autograd has a thread for each device, on which checkpoints are computed again; the thread
        that called it waits for them.
        """
        thread = threading.get_ident()
        if thread == self._thread:
            yield
            return
        own = self._thread, self._modules
        self._thread, self._modules = thread, []
        _this_thread.monitor = self
        try:
            with self._functions.on_this_thread():
                yield
        finally:
            del _this_thread.monitor
            self._thread, self._modules = own

    def changed(self, call: Call) -> tuple[Call, list[Callable[[Tensor], Tensor]]]:
        """Let interventions change a call: what it became, and what becomes of its context."""
        call, edits = self._named(call), []
        for changer in self.changers:
            change = changer.change(call)
            if change is None:
                continue
            require_known()
            depends_on(changer, partial(self._has, changer))
            if change.problem is not None:
                call = replace(call, changed=change.problem)
            if change.edit is not None:
                edits.append(change.edit)
        edits += [partial(_observed, observer, call) for observer in self.context_observers]
        return call, edits

    def _has(self, changer: Changer) -> bool:
        return changer in self.changers

    def may_change_inside(self, module: nn.Module) -> bool:
        """Whether contexts inside a module of torch's are observed, or may be changed."""
        if self.context_observers:
            return True
        if not self.changers or isinstance(module, nn.TransformerEncoder):  # each layer by itself
            return bool(self.changers)
        modules = self._called()
        if isinstance(module, nn.TransformerEncoderLayer):
            modules = (*modules, module.self_attn)
        return any(changer.may_change(modules, self._runs) for changer in self.changers)

    def see_imports(self) -> None:
        """See functions of libraries and the compiler, where they were imported since."""
        replaced, forced = self._functions.see_imports(), self._eager.force()
        self.modules_seen = len(sys.modules) if replaced and forced else -1

    def notify(self, call: Call) -> None:
        """Hand a call to all observers."""
        if transforms():
            with without_transforms():
                self.notify(outside_transforms(call))
            return
        if not self.takes_part:
            call = self._named(call)
        for observer in self.observers:
            observer(call)

    def _named(self, call: Call) -> Call:
        """Add what is known of a call's place: the modules that led to it, and its run."""
        call = call.with_(modules=(*self._called(), *call.modules), run=self._runs)
        if transforms():
            with without_transforms():
                repeated = self._is_repeated(outside_transforms(call))
        else:
            repeated = self._is_repeated(call)
        return call.with_(repeated=True) if repeated else call

    def _is_repeated(self, call: Call) -> bool:
        """Whether the call before had the same weights; those of a batch are not compared."""
        before, self._before = self._before, None if call.batched else call.to_compare()
        if before is None or call.batched or before.run != call.run:
            return False
        return call.repeats(before)

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:  # noqa: ARG002 - torch's signature
        if threading.get_ident() != self._thread:
            return
        if not self._modules or len(sys.modules) != self.modules_seen:
            self.see_imports()
        self._eager.announce(module)
        frame = _calling_frame()
        while self._modules and not _is_called_from(frame, self._modules[-1].frame):
            self._modules.pop()  # an interrupt ended it, and torch ran no hook
        if not self._modules:
            self._runs += 1
        self._modules.append(_ActiveModule(module, frame))

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:  # noqa: ARG002 - likewise
        if threading.get_ident() != self._thread or not self._modules:
            return
        if self._modules[-1].module is not module:
            if all(m is not module for m in self._called()):
                return
            while self._modules[-1].module is not module:
                self._modules.pop()
        self._modules.pop()

    def _called(self) -> tuple[nn.Module, ...]:
        return tuple(entered.module for entered in self._modules)


def _observed(observer: ContextObserver, call: Call, context: Tensor) -> Tensor:
    if transforms():
        with without_transforms():
            observer(outside_transforms(call), unwrapped(context))
    else:
        observer(call, context)
    return context


def _calling_frame() -> FrameType | None:
    """Torch's frame that calls the module whose hook runs."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") != nn.Module.__module__:
        frame = frame.f_back
    return frame


def _is_called_from(frame: FrameType | None, above: FrameType | None) -> bool:
    """Whether a frame was called, directly or not, from another one."""
    while frame is not None and frame is not above:
        frame = frame.f_back
    return frame is above
