"""Observes and changes the attention calls of this thread, for all blocks open on it.

A dispatch key intercepts torch's operators, and monkeypatched functions those of this package and
of other libraries, and torch's call of a module, which identifies the caller. All are installed
only while there are observers or interventions, during which compiled code runs eagerly.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from torch import Tensor, nn

from regard._contexts import transforms, unwrapped, without_transforms
from regard.intercept._call import outside_transforms
from regard.intercept._eager import EagerCode, require_no_graph
from regard.intercept._functions import FunctionCalls
from regard.intercept._fused import FORWARDS, FusedLayers
from regard.intercept._library_calls import READERS, LibraryCalls
from regard.intercept._mask_reduction import MaskReducer
from regard.intercept._operators import OperatorCalls
from regard.intercept._recomputation import (
    CHECKPOINT,
    Checkpoints,
    depends_on,
    require_known,
)
from regard.intercept._scopes import Scope, open_scope
from regard.intercept._torch_calls import TorchCalls

if TYPE_CHECKING:
    from regard.intercept._call import Call
    from regard.intercept._compute import CallChanger

    Observer = Callable[[Call], None]
    ContextObserver = Callable[[Call, Tensor], None]

T = TypeVar("T")

# Where torch calls a module. Its global hooks tell the same, but cost each module several times as
# much: with them torch leaves its fast path.
_MODULE_CALL = f"{nn.Module.__module__}:{nn.Module.__name__}._call_impl"

_this_thread = threading.local()


@contextmanager
def observe_calls(observer: Observer, *, reads: bool = False) -> Iterator[None]:
    """Pass every attention call of this thread to the observer, as interventions changed it.

    Args:
        observer: called with each call, after its context was computed.
        reads: whether it takes readouts: it may then be called before the context is computed, so
            that both share a pass; see `Call.pending`.
    """
    with (
        _interceptor() as interceptor,
        interceptor.observers.added(observer),
        interceptor.readers.added(observer) if reads else nullcontext(),
    ):
        yield


@contextmanager
def observe_contexts(observer: ContextObserver) -> Iterator[None]:
    """Pass the context ``(B, H, L, Dv)`` of every call to the observer, before the call itself."""
    with _interceptor() as interceptor, interceptor.context_observers.added(observer):
        yield


@contextmanager
def change_calls(changer: CallChanger) -> Iterator[None]:
    """Apply a changer to every attention call of this thread, after those of outer blocks."""
    with _interceptor() as interceptor, interceptor.changers.added(changer):
        yield


@contextmanager
def _interceptor() -> Iterator[_ThreadInterceptor]:
    """Provide this thread's interceptor, which is shared and reference-counted."""
    interceptor: _ThreadInterceptor | None = getattr(_this_thread, "interceptor", None)
    if interceptor is None or interceptor.users == 0:  # it may have been stopped on another thread
        require_no_graph()
        interceptor = _ThreadInterceptor()
        try:
            interceptor.start()
        except BaseException:
            interceptor.stop()
            raise
        _this_thread.interceptor = interceptor
    interceptor.users += 1
    try:
        yield interceptor
    finally:
        interceptor.users -= 1
        if interceptor.users == 0:
            interceptor.stop()
            if (
                getattr(_this_thread, "interceptor", None) is interceptor
            ):  # otherwise another thread stops it
                del _this_thread.interceptor


def is_observed() -> bool:
    """Return whether attention calls made here are observed."""
    interceptor: _ThreadInterceptor | None = getattr(_this_thread, "interceptor", None)
    return interceptor is not None and interceptor.is_needed


class _Scoped(Generic[T]):
    """Observers or changers, each with the scope of its block."""

    def __init__(self) -> None:
        self._all: list[tuple[Scope, T]] = []

    @contextmanager
    def added(self, one: T) -> Iterator[None]:
        """Open a scope with an observer or changer."""
        with open_scope() as block:
            entry = block, one
            self._all.append(entry)
            try:
                yield
            finally:
                self._all.remove(entry)

    def __iter__(self) -> Iterator[T]:
        """Iterate over those whose scope contains the current call."""
        return iter([one for block, one in self._all if block.holds()])

    def __bool__(self) -> bool:
        for block, _ in self._all:  # noqa: SIM110 - quicker than any() of a generator
            if block.holds():
                return True
        return False


class _ThreadInterceptor:
    """The modules being called on one thread, and the observers and changers of their calls."""

    def __init__(self) -> None:
        self.users = 0
        self.observers: _Scoped[Observer] = _Scoped()
        self.readers: _Scoped[Observer] = _Scoped()
        """The observers that take readouts."""
        self.context_observers: _Scoped[ContextObserver] = _Scoped()
        self.changers: _Scoped[CallChanger] = _Scoped()
        self.reducer = MaskReducer()
        self._thread = threading.get_ident()
        self._modules: list[nn.Module] = []
        self._runs = -1
        self._before: Call | None = None
        self._eager = EagerCode()
        torch_calls, fused = TorchCalls(self), FusedLayers(self)
        self._operators = OperatorCalls(torch_calls.operators | fused.operators)
        self._functions = FunctionCalls(
            torch_calls.functions
            | dict.fromkeys(READERS, LibraryCalls(self, self._eager))
            | dict.fromkeys(FORWARDS, fused)
            | {CHECKPOINT: Checkpoints(self.on_this_thread), _MODULE_CALL: self._call_module}
        )
        self._installed = ExitStack()

    def start(self) -> None:
        for one in (self._eager, self._functions, self._operators):
            self._installed.callback(one.stop)
            one.start()

    def stop(self) -> None:
        self._before = None  # breaks a reference cycle, so that tensors are freed at once
        self._installed.close()

    @property
    def module(self) -> nn.Module | None:
        """The innermost `nn.Module` being called."""
        return self._modules[-1] if self._modules else None

    @property
    def is_needed(self) -> bool:
        """Whether the current call belongs to a block."""
        return bool(self.observers or self.context_observers or self.changers)

    @property
    def needs_output(self) -> bool:
        """True if any hook needs the attention output, so it is computed here."""
        return bool(self.changers or self.context_observers)

    @property
    def changes(self) -> bool:
        """Whether there are interventions for the current call."""
        return bool(self.changers)

    @property
    def reads(self) -> bool:
        """Whether an observer takes readouts, which can share a pass with the context."""
        return bool(self.readers)

    @contextmanager
    def recomputing(self) -> Iterator[None]:
        """Context manager in which calls are changed but not observed, for recomputation."""
        observers = self.observers, self.context_observers
        self.observers, self.context_observers = _Scoped(), _Scoped()
        try:
            yield
        finally:
            self.observers, self.context_observers = observers

    @contextmanager
    def on_this_thread(self) -> Iterator[None]:
        """Context manager that intercepts calls of the current thread instead of its own.

        Autograd recomputes checkpoints on one thread per device, while the calling thread waits.
        """
        thread = threading.get_ident()
        if thread == self._thread:
            yield
            return
        own = self._thread, self._modules
        self._thread, self._modules = thread, []
        _this_thread.interceptor = self
        try:
            with self._functions.on_this_thread(), self._operators.on_this_thread():
                yield
        finally:
            del _this_thread.interceptor
            self._thread, self._modules = own

    def changed(self, call: Call) -> tuple[Call, list[Callable[[Tensor], Tensor]]]:
        """Apply interventions: return the changed call, and functions to apply to its context."""
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

    def _has(self, changer: CallChanger) -> bool:
        return changer in self.changers

    def may_change_inside(self, module: nn.Module) -> bool:
        """Return whether contexts inside a torch module are observed or may be changed."""
        if self.context_observers:
            return True
        if not self.changers or isinstance(
            module, nn.TransformerEncoder
        ):  # its layers are decided one by one
            return bool(self.changers)
        modules = self._called()
        if isinstance(module, nn.TransformerEncoderLayer):
            modules = (*modules, module.self_attn)
        return any(changer.may_change(modules, self._runs) for changer in self.changers)

    def notify(self, call: Call) -> None:
        """Pass a call to all observers."""
        if transforms():
            with without_transforms():
                self.notify(outside_transforms(call))
            return
        if not self.needs_output:
            call = self._named(call)
        for observer in self.observers:
            observer(call)

    def _named(self, call: Call) -> Call:
        """Add the calling modules and the run to a call, and whether it is repeated."""
        call = call.with_(modules=(*self._called(), *call.modules), run=self._runs)
        if transforms():
            with without_transforms():
                repeated = self._is_repeated(outside_transforms(call))
        else:
            repeated = self._is_repeated(call)
        return call.with_(repeated=True) if repeated else call

    def _is_repeated(self, call: Call) -> bool:
        """Return whether the previous call had the same weights; False inside `torch.vmap`."""
        before, self._before = self._before, None if call.batched else call.to_compare()
        if before is None or call.batched or before.run != call.run:
            return False
        return call.repeats(before)

    def _call_module(
        self,
        path: str,  # noqa: ARG002 - a handler's
        own: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Call a module, which is among those being called until it returns or raises."""
        modules = self._modules
        if not modules:
            self._runs += 1
            self._operators.keep()
        self._eager.announce(args[0])
        depth = len(modules)
        modules.append(args[0])
        try:
            return own(*args, **kwargs)
        finally:
            del modules[depth:]

    def _called(self) -> tuple[nn.Module, ...]:
        return tuple(self._modules)


def _observed(observer: ContextObserver, call: Call, context: Tensor) -> Tensor:
    if transforms():
        with without_transforms():
            observer(outside_transforms(call), unwrapped(context))
    else:
        observer(call, context)
    return context
