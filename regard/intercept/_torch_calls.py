"""Intercepts torch's attention functions, and those of this package.

Axes: B batch, H query heads, L queries, S keys, D head dimension.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard._contexts import must_dispatch, wants_gradient
from regard.attention import attention_with_pattern
from regard.backends import choose_checked
from regard.intercept._call import Call, PendingContext, attention_call, sdpa_call
from regard.intercept._compute import computed, edited, gradients, run_call
from regard.intercept._eager import require_no_graph
from regard.intercept._functions import Handler
from regard.intercept._operators import SDPA, is_intercepting, not_intercepting
from regard.pattern import Pattern

if TYPE_CHECKING:
    from regard.intercept._compute import Interceptor

ATTENTION = "regard.attention:attention"
WITH_PATTERN = "regard.attention:attention_with_pattern"
AND_READINGS = "regard.attention:_attention_and_readings"
MULTI_HEAD = "torch.nn.functional:multi_head_attention_forward"
# What subclasses of tensors have torch call in place of SDPA.
SUBCLASSES = (
    "torch.nn.attention.bias:CausalBias._dispatch",
    "torch.nested._internal.sdpa:jagged_scaled_dot_product_attention",
)
BACKWARD = ("torch.autograd:backward", "torch.autograd:grad")

# Fewer rows use other kernels, which cannot share a pass with readouts.
_FEWEST_ROWS = 64


class TorchCalls:
    """Handles calls of torch's attention functions, and of this package's, on one thread."""

    def __init__(self, interceptor: Interceptor) -> None:
        self._interceptor = interceptor
        self.operators: dict[str, Handler] = {SDPA: self._sdpa}
        """Handlers of operators."""
        self.functions: dict[str, Handler] = {
            ATTENTION: self._attention,
            WITH_PATTERN: self._attention_with_pattern,
            AND_READINGS: self._attention_and_readings,
            MULTI_HEAD: self._multi_head,
            **dict.fromkeys(SUBCLASSES, self._sdpa_of_subclass),
            **dict.fromkeys(BACKWARD, self._backward),
        }
        """Handlers of functions."""

    def _is_seen(self) -> bool:
        """Return whether a call is not part of another one, and belongs to a block."""
        if not (is_intercepting() and self._interceptor.is_needed):
            return False
        require_no_graph()
        return True

    def _backward(
        self,
        path: str,  # noqa: ARG002 - a handler's
        own: Callable[..., Any],
        args: tuple[Any, ...],
        options: dict[str, Any],
    ) -> Any:
        """Run a backward pass, in which checkpoints recompute calls that must be changed."""
        if not is_intercepting():
            return own(*args, **options)
        if self._interceptor.is_needed and self._interceptor.changes:
            with self._interceptor.recomputing():
                return own(*args, **options)
        with not_intercepting():
            return own(*args, **options)

    def _sdpa_of_subclass(
        self,
        path: str,
        own: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if not is_intercepting():
            return own(*args, **kwargs)
        with not_intercepting():
            return self._sdpa(path, own, args, kwargs)

    def _sdpa(
        self,
        path: str,  # noqa: ARG002 - a handler's
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        def own() -> Tensor:
            return function(*args, **kwargs)

        if not self._interceptor.is_needed:  # called by another task
            return own()
        require_no_graph()
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
        shape = (*query.shape[:-1], context.shape[-1])
        # Grouped heads may be folded into the queries.
        context = context.reshape(shape) if context.numel() == math.prod(shape) else context
        if context.ndim != 4:
            return context
        # In memory heads follow queries, as in torch's result, of which a model may make a view.
        return context.transpose(1, 2).contiguous().transpose(1, 2)

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

    def _attention(
        self,
        path: str,  # noqa: ARG002 - a handler's
        func: Callable[..., Any],
        args: tuple[Any, ...],
        options: dict[str, Any],
    ) -> Any:
        if options.get("read") is not None or not self._is_seen():  # that calls another function
            return func(*args, **options)
        options.pop("read", None)
        with not_intercepting():
            call, backend = attention_call(*args, **options), options.get("backend")
            own = partial(func, *args, **options)
            if self._interceptor.needs_output:
                return computed(self._interceptor, call, own, backend)[0]
            pending = _pending_context(call, backend) if self._interceptor.reads else None
            return self._computed_and_read(call, own, pending)

    def _attention_with_pattern(
        self,
        path: str,  # noqa: ARG002 - a handler's
        func: Callable[..., Any],
        args: tuple[Any, ...],
        options: dict[str, Any],
    ) -> Any:
        if not self._is_seen():
            return func(*args, **options)
        with not_intercepting():
            call = attention_call(*args, **options)
            if not self._interceptor.needs_output:
                return self._computed_and_read(call, partial(func, *args, **options), None)
            patterns: list[Pattern] = []

            def own() -> Tensor:
                context, pattern = func(*args, **options)
                patterns.append(pattern)
                return context

            context, changed = computed(self._interceptor, call, own, options.get("backend"))
            return context, patterns[0] if changed is None else Pattern.of(changed, None)

    def _attention_and_readings(
        self,
        path: str,  # noqa: ARG002 - a handler's
        func: Callable[..., Any],
        args: tuple[Any, ...],
        options: dict[str, Any],
    ) -> Any:
        if not self._is_seen():
            return func(*args, **options)
        query, key, value, read = args
        context, pattern = attention_with_pattern(query, key, value, **options)
        return context, pattern.read(*read)

    def _multi_head(
        self,
        path: str,  # noqa: ARG002 - a handler's
        own: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run torch's multi-head attention so that its SDPA call is seen.

        If weights are requested, torch does not call SDPA; then it is run a second time without
        weights, up to the SDPA call.
        """
        bound = inspect.signature(own).bind(*args, **kwargs)
        bound.apply_defaults()
        if not bound.arguments["need_weights"] or not self._is_seen():
            return own(*args, **kwargs)
        bound.arguments["need_weights"] = False
        with not_intercepting():
            if self._interceptor.needs_output:
                return self._multi_head_with_weights(own, bound, partial(own, *args, **kwargs))
            result = own(*args, **kwargs)
            self._interceptor.notify(self._call_inside(own, bound))
            return result

    def _multi_head_with_weights(
        self,
        function: Callable[..., Any],
        bound: inspect.BoundArguments,
        own: Callable[[], tuple[Tensor, Tensor | None]],
    ) -> tuple[Tensor, Tensor | None]:
        call, edits = self._interceptor.changed(self._call_inside(function, bound))
        if call.changed is None and not edits:
            result = own()
            self._interceptor.notify(call)
            return result
        problem = call.attention()

        def sdpa(*args: Any, **kwargs: Any) -> Tensor:  # noqa: ARG001 - the call is known
            return edited(run_call(call, problem), problem.leading, edits)

        output, _ = _with_sdpa(function, sdpa)(*bound.args, **bound.kwargs)
        self._interceptor.notify(call)
        weights = Pattern.of(problem, None).dense(limit=None).to(output.dtype)  # (B, H, L, S)
        if bound.arguments["average_attn_weights"]:
            weights = weights.mean(dim=-3)
        return output, weights if bound.arguments["query"].ndim == 3 else weights.squeeze(0)

    def _call_inside(self, own: Callable[..., Any], bound: inspect.BoundArguments) -> Call:
        """Run multi-head attention up to its SDPA call, and return that call."""
        calls: list[Call] = []

        def stop(*args: Any, **kwargs: Any) -> None:
            calls.append(self._read_sdpa(*args, **kwargs))
            raise _SdpaCalled

        try:
            with gradients(self._interceptor):
                _with_sdpa(own, stop)(*bound.args, **bound.kwargs)
        except _SdpaCalled:
            return calls[0]
        raise AssertionError("multi_head_attention_forward ends in an SDPA call")

    def _read_sdpa(self, *args: Any, **kwargs: Any) -> Call:
        with gradients(self._interceptor):
            return sdpa_call(self._interceptor.reducer, self._interceptor.module, *args, **kwargs)


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


def _with_sdpa(own: Any, sdpa: Callable[..., Any]) -> Callable[..., Any]:
    """Copy torch's multi-head attention, with SDPA replaced and without function modes."""
    plain = dict.fromkeys(("has_torch_function", "has_torch_function_unary"), lambda _: False)
    names = own.__globals__ | plain | {"scaled_dot_product_attention": sdpa}
    copy = FunctionType(own.__code__, names, own.__name__, own.__defaults__, own.__closure__)
    copy.__kwdefaults__ = own.__kwdefaults__
    return copy
