"""Calls of attention that are not torch functions: what reads them, and what becomes of them.

Axes: B batch, H query heads, L queries, D head dimension of query and key, Dv of value.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from regard.errors import RecordError
from regard.intercept import _flash, _flash3, _flex, _xformers
from regard.intercept._compute import computed, gradients
from regard.intercept._function_mode import without

if TYPE_CHECKING:
    from regard.intercept._compute import Monitor
    from regard.intercept._eager import EagerCode
    from regard.intercept._library_call import LibraryCall

_FLEX = "torch.nn.attention.flex_attention.flex_attention"
READERS: dict[str, Callable[..., LibraryCall]] = {
    _FLEX: _flex.flex_attention,
    "flash_attn.flash_attn_func": _flash.flash_attn_func,
    "flash_attn.flash_attn_kvpacked_func": _flash.flash_attn_kvpacked_func,
    "flash_attn.flash_attn_qkvpacked_func": _flash.flash_attn_qkvpacked_func,
    "flash_attn.flash_attn_varlen_func": _flash.flash_attn_varlen_func,
    "flash_attn.flash_attn_varlen_kvpacked_func": _flash.flash_attn_varlen_kvpacked_func,
    "flash_attn.flash_attn_varlen_qkvpacked_func": _flash.flash_attn_varlen_qkvpacked_func,
    "flash_attn.flash_attn_with_kvcache": _flash.flash_attn_with_kvcache,
    "flash_attn_interface.flash_attn_func": _flash3.flash_attn_func,
    **{
        f"flash_attn_interface.{name}": _flash3.refused(name)
        for name in (
            "flash_attn_qkvpacked_func",
            "flash_attn_varlen_func",
            "flash_attn_with_kvcache",
        )
    },
    "xformers.ops.memory_efficient_attention": _xformers.memory_efficient_attention,
}
"""By the path of a function, what reads its arguments, by the same names."""


class LibraryCalls:
    """Takes the calls of such functions on one thread.

    Args:
        monitor: where they are brought.
        mode: without it, what runs is inside a call that was seen already.
        eager: compiled code of this block.
    """

    def __init__(self, monitor: Monitor, mode: TorchFunctionMode, eager: EagerCode) -> None:
        self._monitor = monitor
        self._mode = mode
        self._eager = eager

    def __call__(
        self, path: str, own: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Compute a call as interventions change it, and hand it to the observers."""
        if self._mode not in _get_current_function_mode_stack():
            return own(*args, **kwargs)
        with without(self._mode):
            # Torch compiles what it captured of a score_mod, which without it gets no gradient.
            compiling = path == _FLEX and torch.is_grad_enabled()
            with self._eager.suspended() if compiling else nullcontext():
                result = own(*args, **kwargs)  # always: it may also write to a cache
            if not self._monitor.is_needed:
                return result
            with gradients(self._monitor):
                seen = self._read(path, args, kwargs)
            if not self._monitor.takes_part:
                self._monitor.notify(seen.call)
                return result
            return self._changed(path, seen, result)

    def _read(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LibraryCall:
        reader = READERS[path]
        try:
            bound = inspect.signature(reader).bind(*args, **kwargs)
        except TypeError as error:
            raise RecordError(
                f"{path} was called with arguments that regard does not know ({error}); "
                f"it knows {', '.join(inspect.signature(reader).parameters)}"
            ) from error
        return reader(*bound.args, **bound.kwargs)

    def _changed(self, path: str, seen: LibraryCall, result: Any) -> Any:
        whole = isinstance(result, Tensor)
        own = result if whole else result[0]

        def heads() -> Tensor:
            return seen.to_heads(own)

        context, changed = computed(self._monitor, seen.call, heads)
        if not whole and changed is not None:
            raise RecordError(
                f"{path} also returns numbers of the attention that an intervention changed; "
                f"call it without {seen.returns_more}"
            )
        context = seen.from_heads(context).contiguous()
        return context if whole else (context, *result[1:])
