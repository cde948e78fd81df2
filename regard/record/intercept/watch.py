"""Watching the attention calls that are made on this thread.

A torch function mode sees the calls and lets them through; hooks that torch runs around every
module tell who makes them. Both are there only while someone listens.
"""

from __future__ import annotations

import inspect
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import module as torch_modules
from torch.overrides import TorchFunctionMode

from regard.attention import attention, attention_with_pattern
from regard.record._errors import RecordError
from regard.record.intercept._fused import FusedLayers, may_fuse
from regard.record.intercept.calls import of_attention, of_sdpa
from regard.record.intercept.masks import Reducer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from regard.record.intercept.calls import Call

    Listener = Callable[[Call], None]

_this_thread = threading.local()


@contextmanager
def listen(listener: Listener) -> Iterator[None]:
    """Have every attention call of this thread told to the listener."""
    watch: _Watch | None = getattr(_this_thread, "watch", None)
    if watch is None:
        watch = _this_thread.watch = _Watch()
        watch.start()
    watch.listeners.append(listener)
    try:
        yield
    finally:
        watch.listeners.remove(listener)
        if not watch.listeners:
            del _this_thread.watch
            watch.stop()


def listening() -> bool:
    """Whether somebody listens to the attention calls of this thread."""
    return hasattr(_this_thread, "watch")


@dataclass(frozen=True, eq=False)
class _Entered:
    """A module that is being called."""

    module: nn.Module
    seen: int
    """How many attention calls had been seen before."""
    frame: FrameType | None


class _Watch:
    """What is being called on one thread, and who wants to know."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []
        self.reducer = Reducer()
        self._thread = threading.get_ident()
        self._modules: list[_Entered] = []
        self._runs = -1
        self._seen = 0
        self._mode = _Functions(self)
        self._installed = ExitStack()
        self._aside = ExitStack()
        self._aside_for: nn.Module | None = None

    def start(self) -> None:
        entering = torch_modules.register_module_forward_pre_hook(self._enter)
        self._installed.callback(entering.remove)
        leaving = torch_modules.register_module_forward_hook(
            self._leave, with_kwargs=True, always_call=True
        )
        self._installed.callback(leaving.remove)
        # remove() leaves this note behind, for which torch takes a hook to be there still.
        noted = torch_modules._global_forward_hooks_with_kwargs  # noqa: SLF001 - nothing public clears it
        self._installed.callback(noted.pop, leaving.id, None)
        self._installed.enter_context(self._mode)

    def stop(self) -> None:
        self._aside.close()
        self._installed.close()

    @property
    def module(self) -> nn.Module | None:
        """The innermost module being called."""
        return self._modules[-1].module if self._modules else None

    def tell(self, call: Call) -> None:
        """Hand a call to all listeners, with the modules that led to it."""
        self._seen += 1
        modules = self._called()
        if modules and isinstance(modules[-1], nn.TransformerEncoderLayer):  # fused
            modules = (*modules, modules[-1].self_attn)
        call = replace(call, modules=modules, run=self._runs)
        for listener in self.listeners:
            listener(call)

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:  # noqa: ARG002 - torch's signature
        if threading.get_ident() != self._thread:
            return
        require_eager(module)
        frame = _calling_frame()
        while self._modules and not _is_below(frame, self._modules[-1].frame):
            self._forget()  # an interrupt broke it off, of which torch tells no hook
        if not self._modules:
            self._runs += 1
        self._modules.append(_Entered(module, self._seen, frame))
        if self._aside_for is None and may_fuse(module, self._mode):
            self._step_aside(module)

    def _leave(self, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        # Of a call that was broken off, torch tells no keyword arguments.
        kwargs, output = rest if len(rest) == 2 else ({}, None)
        if threading.get_ident() != self._thread or all(m is not module for m in self._called()):
            return
        while self._modules[-1].module is not module:
            self._forget()
        if self._aside_for is not None and output is not None:
            may_attend = isinstance(module, nn.MultiheadAttention) or module is self._aside_for
            if may_attend and self._seen == self._modules[-1].seen:
                self._look_again(module, args, kwargs)
        self._forget()

    def _called(self) -> tuple[nn.Module, ...]:
        return tuple(entered.module for entered in self._modules)

    def _forget(self) -> None:
        """Take note that the innermost module is called no more."""
        if self._modules.pop().module is self._aside_for:
            self._aside.close()
            self._aside_for = None

    def _step_aside(self, module: nn.Module) -> None:
        """Let a module of torch's take its fused path, which it avoids where a mode looks on."""
        self._aside_for = module
        self._aside.enter_context(torch._C.DisableTorchFunction())  # noqa: SLF001 - there is no other
        if not torch.is_autocast_enabled("cpu") and not torch.is_autocast_enabled("cuda"):
            # Below autocast, where these look on, the operator would compute without it.
            self._aside.enter_context(FusedLayers(self.tell))

    def _look_again(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Call a layer once more that took no fused path after all; its first result stands."""
        aside_for = self._aside_for
        assert aside_for is not None, "it is called only then"
        self._aside.close()
        with torch.no_grad():
            module.forward(*args, **kwargs)
        self._step_aside(aside_for)


def _calling_frame() -> FrameType | None:
    """The frame of torch's that calls the module whose hook this is."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") != nn.Module.__module__:
        frame = frame.f_back
    return frame


def _is_below(frame: FrameType | None, above: FrameType | None) -> bool:
    """Tell whether a frame was called, by whatever ways, from another one."""
    while frame is not None and frame is not above:
        frame = frame.f_back
    return frame is above


class _Functions(TorchFunctionMode):
    """Sees every torch function that is called, and acts on those that attend."""

    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if func is F.scaled_dot_product_attention:
            require_eager(None)
            return self._sdpa(*args, **given)
        if func in (attention, attention_with_pattern):
            require_eager(None)
            result = func(*args, **given)
            self._watch.tell(of_attention(*args, **given))
            return result
        if func is F.multi_head_attention_forward:
            require_eager(None)
            return self._multi_head(*args, **given)
        return func(*args, **given)

    def _sdpa(self, *args: Any, **kwargs: Any) -> Any:
        result = F.scaled_dot_product_attention(*args, **kwargs)
        self._watch.tell(of_sdpa(self._watch.reducer, self._watch.module, *args, **kwargs))
        return result

    def _multi_head(self, *args: Any, **kwargs: Any) -> Any:
        """Run torch's multi-head attention so that the SDPA call in it is seen.

        Where weights are wanted, it makes none; then it is run again without, up to that call.
        """
        own = F.multi_head_attention_forward
        given = inspect.signature(own).bind(*args, **kwargs)
        given.apply_defaults()
        if not given.arguments["need_weights"]:
            return _with_sdpa(self._sdpa)(*given.args, **given.kwargs)
        result = own(*args, **kwargs)
        given.arguments["need_weights"] = False
        try:
            with torch.no_grad():
                _with_sdpa(self._sdpa_reached)(*given.args, **given.kwargs)
        except _Reached:
            return result
        raise AssertionError("multi_head_attention_forward ends in an SDPA call")

    def _sdpa_reached(self, *args: Any, **kwargs: Any) -> Any:
        self._watch.tell(of_sdpa(self._watch.reducer, self._watch.module, *args, **kwargs))
        raise _Reached


class _Reached(Exception):  # noqa: N818 - no error: the way out of a function that has told enough
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
    """Refuse a module that runs as a graph, out of sight.

    Raises:
        RecordError: if the module, or what runs now, is compiled.
    """
    compiled = hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None)
    if compiled or torch.compiler.is_compiling():
        model = getattr(module, "_orig_mod", module)
        raise RecordError(
            f"{'the model' if model is None else type(model).__name__} runs under torch.compile, "
            "whose graph makes its calls out of sight; recording needs eager mode: call the model "
            "as it was before, compiled._orig_mod, or make it without model.compile()"
        )
