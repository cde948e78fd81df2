"""Intercepts attention functions of libraries, which may call no operator of torch.

Axes: B batch, H query heads, L queries, D head dimension of query and key, Dv of value.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.errors import RecordError
from regard.intercept import _flash_attn, _flex, _xformers
from regard.intercept._compute import computed, gradients
from regard.intercept._operators import is_intercepting, not_intercepting

if TYPE_CHECKING:
    from regard.intercept._compute import Interceptor
    from regard.intercept._eager import EagerCode
    from regard.intercept._library_call import LibraryCall

_FLEX = "torch.nn.attention.flex_attention.flex_attention"
READERS: dict[str, Callable[..., LibraryCall]] = {
    _FLEX: _flex.flex_attention,
    "flash_attn.flash_attn_func": _flash_attn.flash_attn_func,
    "flash_attn.flash_attn_kvpacked_func": _flash_attn.flash_attn_kvpacked_func,
    "flash_attn.flash_attn_qkvpacked_func": _flash_attn.flash_attn_qkvpacked_func,
    "flash_attn.flash_attn_varlen_func": _flash_attn.flash_attn_varlen_func,
    "flash_attn.flash_attn_varlen_kvpacked_func": _flash_attn.flash_attn_varlen_kvpacked_func,
    "flash_attn.flash_attn_varlen_qkvpacked_func": _flash_attn.flash_attn_varlen_qkvpacked_func,
    "flash_attn.flash_attn_with_kvcache": _flash_attn.flash_attn_with_kvcache,
    "flash_attn_interface.flash_attn_func": _flash_attn.flash_attn_3_func,
    **{
        f"flash_attn_interface.{name}": _flash_attn.refused_flash_attn_3(name)
        for name in (
            "flash_attn_qkvpacked_func",
            "flash_attn_varlen_func",
            "flash_attn_with_kvcache",
        )
    },
    "xformers.ops.memory_efficient_attention": _xformers.memory_efficient_attention,
}
"""Readers by the path of the function; each has the signature of its function."""


class LibraryCalls:
    """Handles calls of these functions on one thread.

    Args:
        interceptor: receives the calls.
        eager: the block's request to run compiled code eagerly.
    """

    def __init__(self, interceptor: Interceptor, eager: EagerCode) -> None:
        self._interceptor = interceptor
        self._eager = eager

    def __call__(
        self, path: str, own: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Compute a call under interventions, and pass it to the observers."""
        if not is_intercepting():  # an outer call was intercepted already
            return own(*args, **kwargs)
        with not_intercepting():
            # With gradients, torch compiles tensors captured by a score_mod.
            compiling = path == _FLEX and torch.is_grad_enabled()
            with self._eager.suspended() if compiling else nullcontext():
                result = own(*args, **kwargs)  # unconditional, since it may also write to a cache
            if not self._interceptor.is_needed:
                return result
            with gradients(self._interceptor):
                seen = self._read(path, args, kwargs)
            if not self._interceptor.needs_output:
                self._interceptor.notify(seen.call)
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

        context, changed = computed(self._interceptor, seen.call, heads)
        if not whole and changed is not None:
            raise RecordError(
                f"{path} also returns numbers of the attention that an intervention changed; "
                f"call it without {seen.returns_more}"
            )
        context = seen.from_heads(context).contiguous()
        return context if whole else (context, *result[1:])
