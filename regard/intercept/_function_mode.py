"""The torch function mode that intercepts torch's attention functions.

Axes: B batch, H query heads, L queries, S keys, D head dimension.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from sys import modules
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

from regard._contexts import must_dispatch, wants_gradient
from regard.attention import attention, attention_with_pattern
from regard.backends import choose_checked
from regard.intercept._call import Call, PendingContext, attention_call, sdpa_call
from regard.intercept._compute import computed, edited, gradients, run_call
from regard.intercept._eager import require_no_graph
from regard.pattern import Pattern

if TYPE_CHECKING:
    from regard.intercept._compute import Interceptor

_BACKWARD = (Tensor.backward, torch.autograd.backward, torch.autograd.grad)
# Fewer rows use other kernels, which cannot share a pass with readouts.
_FEWEST_ROWS = 64
_SEEN = frozenset(
    (
        *(F.scaled_dot_product_attention, F.multi_head_attention_forward),
        *(attention, attention_with_pattern, *_BACKWARD),
    )
)


class FunctionMode(TorchFunctionMode):
    """Intercepts attention among all torch functions called."""

    def __init__(self, interceptor: Interceptor) -> None:
        super().__init__()
        self._interceptor = interceptor

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if len(modules) != self._interceptor.modules_seen:
            self._interceptor.see_imports()
        if func not in _SEEN:  # the fast path, run for every torch function
            return func(*args) if kwargs is None else func(*args, **kwargs)
        return self._seen(func, args, kwargs or {})

    def _seen(
        self, func: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        if not self._interceptor.is_needed:  # called by another task
            return func(*args, **options)
        if func in _BACKWARD:
            if not self._interceptor.changes:
                return func(*args, **options)
            # Torch disables this mode here, but checkpoints recompute calls that must be changed.
            with self._interceptor.recomputing(), self:
                return _on_plain_tensors(func)(*args, **options)
        require_no_graph()
        if func is F.scaled_dot_product_attention:
            return self._sdpa(*args, **options)
        if func is F.multi_head_attention_forward:
            return self._multi_head(*args, **options)
        return self._attention(func, *args, **options)

    def _sdpa(self, *args: Any, **kwargs: Any) -> Any:
        def own() -> Tensor:
            return F.scaled_dot_product_attention(*args, **kwargs)

        if self._interceptor.needs_output:
            context, _ = computed(self._interceptor, self._read_sdpa(*args, **kwargs), own)
        elif self._interceptor.reads and not _needs_gradient(*args, *kwargs.values()):
            call = self._read_sdpa(*args, **kwargs)
            context = self._computed_and_read(call, own, _pending_context(call, None))
        else:
            result = own()
            self._interceptor.notify(self._read_sdpa(*args, **kwargs))
            return result
        query = args[0] if args else kwargs["query"]
        shape = (
            *query.shape[:-1],
            context.shape[-1],
        )  # grouped heads may be folded into the queries
        return context.reshape(shape) if context.numel() == math.prod(shape) else context

    def _computed_and_read(
        self, call: Call, own: Callable[[], Any], pending: PendingContext | None
    ) -> Any:
        """Return the result of a call, which observers may compute while they read its weights."""
        if pending is None:
            result = own()
            self._interceptor.notify(call)
            return result
        self._interceptor.notify(call.with_(pending=pending))
        return own() if pending.context is None else pending.context

    def _attention(self, func: Callable[..., Any], *args: Any, **options: Any) -> Any:
        call, backend = attention_call(*args, **options), options.get("backend")
        if not self._interceptor.needs_output:
            reads = func is attention and self._interceptor.reads
            pending = _pending_context(call, backend) if reads else None
            return self._computed_and_read(call, lambda: func(*args, **options), pending)
        if func is attention:
            return computed(self._interceptor, call, lambda: attention(*args, **options), backend)[
                0
            ]
        patterns: list[Pattern] = []

        def own() -> Tensor:
            context, pattern = attention_with_pattern(*args, **options)
            patterns.append(pattern)
            return context

        context, changed = computed(self._interceptor, call, own, backend)
        return context, patterns[0] if changed is None else Pattern.of(changed, None)

    def _multi_head(self, *args: Any, **kwargs: Any) -> Any:
        """Run torch's multi-head attention so that its SDPA call is seen.

        If weights are requested, torch does not call SDPA; then it is run a second time without
        weights, up to the SDPA call.
        """
        own = F.multi_head_attention_forward
        bound = inspect.signature(own).bind(*args, **kwargs)
        bound.apply_defaults()
        if not bound.arguments["need_weights"]:
            return _with_sdpa(self._sdpa)(*bound.args, **bound.kwargs)
        bound.arguments["need_weights"] = False
        if self._interceptor.needs_output:
            return self._multi_head_with_weights(bound, lambda: own(*args, **kwargs))
        result = own(*args, **kwargs)
        self._interceptor.notify(self._call_inside(bound))
        return result

    def _multi_head_with_weights(
        self, bound: inspect.BoundArguments, own: Callable[[], tuple[Tensor, Tensor | None]]
    ) -> tuple[Tensor, Tensor | None]:
        call, edits = self._interceptor.changed(self._call_inside(bound))
        if call.changed is None and not edits:
            result = own()
            self._interceptor.notify(call)
            return result
        problem = call.attention()

        def sdpa(*args: Any, **kwargs: Any) -> Tensor:  # noqa: ARG001 - the call is known
            return edited(run_call(call, problem), problem.leading, edits)

        output, _ = _with_sdpa(sdpa)(*bound.args, **bound.kwargs)
        self._interceptor.notify(call)
        weights = Pattern.of(problem, None).dense(limit=None).to(output.dtype)  # (B, H, L, S)
        if bound.arguments["average_attn_weights"]:
            weights = weights.mean(dim=-3)
        return output, weights if bound.arguments["query"].ndim == 3 else weights.squeeze(0)

    def _call_inside(self, bound: inspect.BoundArguments) -> Call:
        """Run multi-head attention up to its SDPA call, and return that call."""
        calls: list[Call] = []

        def stop(*args: Any, **kwargs: Any) -> None:
            calls.append(self._read_sdpa(*args, **kwargs))
            raise _SdpaCalled

        try:
            with gradients(self._interceptor):
                _with_sdpa(stop)(*bound.args, **bound.kwargs)
        except _SdpaCalled:
            return calls[0]
        raise AssertionError("multi_head_attention_forward ends in an SDPA call")

    def _read_sdpa(self, *args: Any, **kwargs: Any) -> Call:
        with gradients(self._interceptor):
            return sdpa_call(self._interceptor.reducer, self._interceptor.module, *args, **kwargs)


@contextmanager
def without(mode: TorchFunctionMode) -> Iterator[None]:
    """Context manager that disables this function mode, and only this one."""
    above: list[TorchFunctionMode] = []
    while (top := _pop_mode()) is not mode:
        above.append(top)
    try:
        for other in reversed(above):
            _push_mode(other)
        yield
    finally:
        for _ in above:
            _pop_mode()
        for other in (mode, *reversed(above)):
            _push_mode(other)


def _needs_gradient(*arguments: Any) -> bool:
    tensors = (argument for argument in arguments if isinstance(argument, Tensor))
    return torch.is_grad_enabled() and any(map(wants_gradient, tensors))


def _pending_context(call: Call, backend: str | None) -> PendingContext | None:
    """Return a context to be computed together with readouts; None if that gains nothing."""
    query = call.query
    if query.device.type != "cpu" or call.dropout > 0 or query.shape[-2] < _FEWEST_ROWS:
        return None
    if must_dispatch():
        return None
    problem = call.attention()
    if problem.differentiable:
        return None
    return PendingContext(problem) if choose_checked(problem, backend).name == "native" else None


class _SdpaCalled(Exception):  # noqa: N818 - ends a function early, without an error
    pass


def _with_sdpa(sdpa: Callable[..., Any]) -> Callable[..., Any]:
    """Return torch's multi-head attention with SDPA replaced and without function modes."""
    return _on_plain_tensors(F.multi_head_attention_forward, scaled_dot_product_attention=sdpa)


def _on_plain_tensors(own: Any, **replaced: Any) -> Callable[..., Any]:
    """Copy a torch function, bypassing function modes and replacing some of its globals."""
    plain = dict.fromkeys(("has_torch_function", "has_torch_function_unary"), lambda _: False)
    names = own.__globals__ | plain | replaced
    copy = FunctionType(own.__code__, names, own.__name__, own.__defaults__, own.__closure__)
    copy.__kwdefaults__ = own.__kwdefaults__
    return copy
