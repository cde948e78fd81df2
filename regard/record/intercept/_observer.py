"""Observing the attention calls that are made on this thread.

A torch function mode sees the calls and lets them through; hooks that torch runs around every
module name the caller. Both are installed only while there are observers.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import FrameType, FunctionType
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import module as torch_modules
from torch.overrides import TorchFunctionMode

from regard.attention import attention, attention_with_pattern
from regard.record._errors import RecordError
from regard.record.intercept._call import attention_call, sdpa_call
from regard.record.intercept._fused import FusedLayers, may_fuse
from regard.record.intercept._mask_reduction import MaskReducer

if TYPE_CHECKING:
    from regard.record.intercept._call import Call

    Observer = Callable[[Call], None]

_this_thread = threading.local()


@contextmanager
def observe_calls(observer: Observer) -> Iterator[None]:
    """Pass every attention call of this thread to the observer."""
    monitor: _CallMonitor | None = getattr(_this_thread, "monitor", None)
    if monitor is None:
        monitor = _this_thread.monitor = _CallMonitor()
        monitor.start()
    monitor.observers.append(observer)
    try:
        yield
    finally:
        monitor.observers.remove(observer)
        if not monitor.observers:
            del _this_thread.monitor
            monitor.stop()


def is_observed() -> bool:
    """Whether the attention calls of this thread are observed."""
    return hasattr(_this_thread, "monitor")


@dataclass(frozen=True, eq=False)
class _ActiveModule:
    """A module that is being called."""

    module: nn.Module
    seen: int
    """How many attention calls had been seen before."""
    frame: FrameType | None


class _CallMonitor:
    """The modules that are being called on one thread, and the observers of their calls."""

    def __init__(self) -> None:
        self.observers: list[Observer] = []
        self.reducer = MaskReducer()
        self._thread = threading.get_ident()
        self._modules: list[_ActiveModule] = []
        self._runs = -1
        self._seen = 0
        self._mode = _FunctionMode(self)
        self._installed = ExitStack()
        self._fast_path = ExitStack()
        self._fast_module: nn.Module | None = None

    def start(self) -> None:
        entering = torch_modules.register_module_forward_pre_hook(self._enter)
        self._installed.callback(entering.remove)
        leaving = torch_modules.register_module_forward_hook(
            self._leave, with_kwargs=True, always_call=True
        )
        self._installed.callback(leaving.remove)
        # remove() leaves this entry, for which torch takes the hook to be there still.
        entries = torch_modules._global_forward_hooks_with_kwargs  # noqa: SLF001 - nothing public clears it
        self._installed.callback(entries.pop, leaving.id, None)
        self._installed.enter_context(self._mode)

    def stop(self) -> None:
        self._fast_path.close()
        self._installed.close()

    @property
    def module(self) -> nn.Module | None:
        """The innermost module being called."""
        return self._modules[-1].module if self._modules else None

    def notify(self, call: Call) -> None:
        """Hand a call to all listeners, with the modules that led to it."""
        self._seen += 1
        modules = self._called()
        if modules and isinstance(modules[-1], nn.TransformerEncoderLayer):  # fused
            modules = (*modules, modules[-1].self_attn)
        call = replace(call, modules=modules, run=self._runs)
        for observer in self.observers:
            observer(call)

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:  # noqa: ARG002 - torch's signature
        if threading.get_ident() != self._thread:
            return
        require_eager(module)
        frame = _calling_frame()
        while self._modules and not _is_called_from(frame, self._modules[-1].frame):
            self._pop()  # an interrupt ended it, and torch ran no hook
        if not self._modules:
            self._runs += 1
        self._modules.append(_ActiveModule(module, self._seen, frame))
        if self._fast_module is None and may_fuse(module, self._mode):
            self._enter_fast_path(module)

    def _leave(self, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        # After an error, torch passes no keyword arguments.
        kwargs, output = rest if len(rest) == 2 else ({}, None)
        if threading.get_ident() != self._thread or all(m is not module for m in self._called()):
            return
        while self._modules[-1].module is not module:
            self._pop()
        if self._fast_module is not None and output is not None:
            may_attend = isinstance(module, nn.MultiheadAttention) or module is self._fast_module
            if may_attend and self._seen == self._modules[-1].seen:
                self._call_again(module, args, kwargs)
        self._pop()

    def _called(self) -> tuple[nn.Module, ...]:
        return tuple(entered.module for entered in self._modules)

    def _pop(self) -> None:
        """Remove the innermost module, whose call has ended."""
        if self._modules.pop().module is self._fast_module:
            self._fast_path.close()
            self._fast_module = None

    def _enter_fast_path(self, module: nn.Module) -> None:
        """Let a module of torch's take its fast path, which it avoids under a function mode."""
        self._fast_module = module
        self._fast_path.enter_context(torch._C.DisableTorchFunction())  # noqa: SLF001 - there is no other
        if not torch.is_autocast_enabled("cpu") and not torch.is_autocast_enabled("cuda"):
            # A dispatch mode runs below autocast, and the operator would compute without it.
            self._fast_path.enter_context(FusedLayers(self.notify))

    def _call_again(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Call a layer again that did not take the fast path; its first result is returned."""
        aside_for = self._fast_module
        assert aside_for is not None, "called only on the fast path"
        self._fast_path.close()
        with torch.no_grad():
            module.forward(*args, **kwargs)
        self._enter_fast_path(aside_for)


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


class _FunctionMode(TorchFunctionMode):
    """Sees every torch function that is called, and acts on attention."""

    def __init__(self, monitor: _CallMonitor) -> None:
        super().__init__()
        self._monitor = monitor

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        options = kwargs or {}
        if func is F.scaled_dot_product_attention:
            require_eager(None)
            return self._sdpa(*args, **options)
        if func in (attention, attention_with_pattern):
            require_eager(None)
            result = func(*args, **options)
            self._monitor.notify(attention_call(*args, **options))
            return result
        if func is F.multi_head_attention_forward:
            require_eager(None)
            return self._multi_head(*args, **options)
        return func(*args, **options)

    def _sdpa(self, *args: Any, **kwargs: Any) -> Any:
        result = F.scaled_dot_product_attention(*args, **kwargs)
        self._monitor.notify(
            sdpa_call(self._monitor.reducer, self._monitor.module, *args, **kwargs)
        )
        return result

    def _multi_head(self, *args: Any, **kwargs: Any) -> Any:
        """Run torch's multi-head attention so that the SDPA call in it is seen.

        Where weights are wanted, it makes none; then it is run again without, up to that call.
        """
        own = F.multi_head_attention_forward
        bound = inspect.signature(own).bind(*args, **kwargs)
        bound.apply_defaults()
        if not bound.arguments["need_weights"]:
            return _with_sdpa(self._sdpa)(*bound.args, **bound.kwargs)
        result = own(*args, **kwargs)
        bound.arguments["need_weights"] = False
        try:
            with torch.no_grad():
                _with_sdpa(self._stop_at_sdpa)(*bound.args, **bound.kwargs)
        except _SdpaCalled:
            return result
        raise AssertionError("multi_head_attention_forward ends in an SDPA call")

    def _stop_at_sdpa(self, *args: Any, **kwargs: Any) -> Any:
        self._monitor.notify(
            sdpa_call(self._monitor.reducer, self._monitor.module, *args, **kwargs)
        )
        raise _SdpaCalled


class _SdpaCalled(Exception):  # noqa: N818 - ends a function early, without an error
    pass


def _with_sdpa(sdpa: Callable[..., Any]) -> Callable[..., Any]:
    """Torch's own code of multi-head attention, calling another SDPA and no mode."""
    own = F.multi_head_attention_forward
    names = vars(F) | {
        "scaled_dot_product_attention": sdpa,
        "has_torch_function": lambda tensors: False,  # noqa: ARG005 - torch's signature
    }
    return FunctionType(own.__code__, names, own.__name__, own.__defaults__, own.__closure__)


def require_eager(module: nn.Module | None) -> None:
    """Refuse a compiled module, whose calls can't be seen.

    Raises:
        RecordError: if the module, or what runs now, is compiled.
    """
    compiled = hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None)
    if compiled or torch.compiler.is_compiling():
        model = getattr(module, "_orig_mod", module)
        raise RecordError(
            f"{'the model' if model is None else type(model).__name__} runs under torch.compile, "
            "whose graph hides its calls; recording needs eager mode: call the model "
            "as it was before, compiled._orig_mod, or make it without model.compile()"
        )
