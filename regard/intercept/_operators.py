"""Intercepts operators of torch on one thread, by a dispatch key.

The key is added to those of the thread, and has kernels for the intercepted operators alone; all
others fall through it in C++. A torch function mode would be called in Python for each of them,
and for each attribute of a tensor: some seventy times for one layer of a Llama.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch._C import DispatchKey, _parse_dispatch_key
from torch._C import _dispatch_tls_is_dispatch_key_excluded as _is_excluded
from torch._C import _dispatch_tls_is_dispatch_key_included as _is_included
from torch._C import _dispatch_tls_set_dispatch_key_excluded as _set_excluded
from torch._C import _dispatch_tls_set_dispatch_key_included as _set_included
from torch._ops import _HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS as _FALLTHROUGH_KEYS
from torch._ops import _higher_order_ops
from torch.library import Library, fallthrough_kernel

from regard.intercept._functions import Handler

SDPA = "aten::scaled_dot_product_attention"
FUSED_ATTENTION = "aten::_native_multi_head_attention"
FUSED_LAYER = "aten::_transformer_encoder_layer_fwd"

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    SDPA: F.scaled_dot_product_attention,
    FUSED_ATTENTION: torch._native_multi_head_attention,  # noqa: SLF001 - its only name
    FUSED_LAYER: torch._transformer_encoder_layer_fwd,  # noqa: SLF001 - likewise
}
# No tensor has this key, and torch uses it only in its own tests of the dispatcher. It comes before
# the keys of autograd, autocast and torch.func, so that a call is seen as the model made it.
_KEY_NAME = "TESTING_ONLY_GenericMode"
_KEY = cast("DispatchKey", _parse_dispatch_key(_KEY_NAME))

_this_thread = threading.local()
_registration = threading.Lock()


class OperatorCalls:
    """Intercepts operators on one thread, from `start` to `stop`.

    Args:
        handlers: the replacements by name, such as `SDPA`.
    """

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = handlers

    def start(self) -> None:
        """Intercept them from now on."""
        with _registration:  # two threads may begin the first blocks at once
            _register()
        _this_thread.handlers = self._handlers
        self.keep()

    @staticmethod
    def keep() -> None:
        """Have the key again if `torch.inference_mode` ended, which restores the thread's keys."""
        _set_included(_KEY, True)  # noqa: FBT003 - torch's

    def stop(self) -> None:
        """Call the operators themselves again."""
        if getattr(_this_thread, "handlers", None) is self._handlers:  # else it is another thread
            del _this_thread.handlers
            _set_included(_KEY, False)  # noqa: FBT003 - torch's

    @contextmanager
    def on_this_thread(self) -> Iterator[None]:
        """Context manager that intercepts them on the current thread too."""
        self.start()
        try:
            yield
        finally:
            self.stop()


def is_intercepting() -> bool:
    """Return whether calls on this thread are intercepted, and not part of one that was."""
    return _is_included(_KEY) and not _is_excluded(_KEY)


@contextmanager
def not_intercepting() -> Iterator[None]:
    """Context manager for the parts of an intercepted call."""
    _set_excluded(_KEY, True)  # noqa: FBT003 - torch's
    try:
        yield
    finally:
        _set_excluded(_KEY, False)  # noqa: FBT003 - torch's


@cache
def _register() -> tuple[Library, Library]:
    """Register the kernels, which are called only on threads that have the key.

    Returns:
        what keeps them registered.
    """
    every, own = Library("_", "IMPL"), Library("aten", "IMPL")
    every.fallback(fallthrough_kernel, _KEY_NAME)
    # Operators of higher order, which are dispatched in Python, have fallbacks of their own.
    _FALLTHROUGH_KEYS.append(_KEY)
    for operator in _higher_order_ops.values():
        operator.fallthrough(_KEY)
    for name, function in _FUNCTIONS.items():
        own.impl(name.removeprefix("aten::"), partial(_kernel, name, function), _KEY_NAME)
    return every, own


def _kernel(name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    handlers: Mapping[str, Handler] | None = getattr(_this_thread, "handlers", None)
    _set_excluded(_KEY, True)  # noqa: FBT003 - torch's
    try:
        if handlers is None:  # the block was ended by another thread
            return function(*args, **kwargs)
        return handlers[name](name, function, args, kwargs)
    finally:
        _set_excluded(_KEY, False)  # noqa: FBT003 - torch's
