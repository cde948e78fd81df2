"""The torch function mode that sees attention calls, and lets interventions change them.

Axes: B batch, H query heads, L queries, S keys, D head dimension.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FunctionType
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.attention import attention, attention_with_pattern
from regard.backends import choose_checked, run
from regard.pattern import Pattern
from regard.problem import Problem
from regard.record._errors import RecordError
from regard.record.intercept._call import Call, attention_call, sdpa_call
from regard.record.intercept._change import edited
from regard.record.intercept._mask_reduction import MaskReducer

_BACKWARD = (Tensor.backward, torch.autograd.backward, torch.autograd.grad)


@runtime_checkable
class Monitor(Protocol):
    """Where the mode brings the calls that it sees."""

    reducer: MaskReducer

    @property
    def module(self) -> nn.Module | None:
        """The innermost module being called."""

    @property
    def takes_part(self) -> bool:
        """Whether contexts are changed or observed, which calls are computed for here."""

    @property
    def changes(self) -> bool:
        """Whether there are interventions."""

    def recomputing(self) -> AbstractContextManager[None]:
        """A time in which calls are changed and not observed, as they were made before."""

    def changed(self, call: Call) -> tuple[Call, list[Callable[[Tensor], Tensor]]]:
        """Let interventions change a call: what it became, and what becomes of its context."""

    def notify(self, call: Call) -> None:
        """Hand a call to all observers."""


class FunctionMode(TorchFunctionMode):
    """Sees every torch function that is called, and acts on attention."""

    def __init__(self, monitor: Monitor) -> None:
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
            return self._attention(func, *args, **options)
        if func is F.multi_head_attention_forward:
            require_eager(None)
            return self._multi_head(*args, **options)
        if func in _BACKWARD and self._monitor.changes:
            # Torch leaves this mode for what it calls; checkpoints compute their calls again.
            with self._monitor.recomputing(), self:
                return _on_plain_tensors(func)(*args, **options)
        return func(*args, **options)

    def _sdpa(self, *args: Any, **kwargs: Any) -> Any:
        def own() -> Tensor:
            return F.scaled_dot_product_attention(*args, **kwargs)

        if not self._monitor.takes_part:
            result = own()
            self._monitor.notify(self._read_sdpa(*args, **kwargs))
            return result
        query = args[0] if args else kwargs["query"]
        context, _ = self._computed(self._read_sdpa(*args, **kwargs), own)
        shape = (*query.shape[:-1], context.shape[-1])  # grouped heads may lie among the queries
        return context.reshape(shape) if context.numel() == math.prod(shape) else context

    def _attention(self, func: Callable[..., Any], *args: Any, **options: Any) -> Any:
        call = attention_call(*args, **options)
        if not self._monitor.takes_part:
            result = func(*args, **options)
            self._monitor.notify(call)
            return result
        backend = options.get("backend")
        if func is attention:
            return self._computed(call, lambda: attention(*args, **options), backend)[0]
        patterns: list[Pattern] = []

        def own() -> Tensor:
            context, pattern = attention_with_pattern(*args, **options)
            patterns.append(pattern)
            return context

        context, changed = self._computed(call, own, backend)
        return context, patterns[0] if changed is None else Pattern.of(changed, None)

    def _multi_head(self, *args: Any, **kwargs: Any) -> Any:
        """Run torch's multi-head attention so that the SDPA call in it is seen.

        Where weights are wanted, it makes none; then it is run again without, up to that call.
        """
        own = F.multi_head_attention_forward
        bound = inspect.signature(own).bind(*args, **kwargs)
        bound.apply_defaults()
        if not bound.arguments["need_weights"]:
            return _with_sdpa(self._sdpa)(*bound.args, **bound.kwargs)
        bound.arguments["need_weights"] = False
        if self._monitor.takes_part:
            return self._multi_head_with_weights(bound, lambda: own(*args, **kwargs))
        result = own(*args, **kwargs)
        self._monitor.notify(self._call_inside(bound))
        return result

    def _multi_head_with_weights(
        self, bound: inspect.BoundArguments, own: Callable[[], tuple[Tensor, Tensor | None]]
    ) -> tuple[Tensor, Tensor | None]:
        call, edits = self._monitor.changed(self._call_inside(bound))
        if call.changed is None and not edits:
            result = own()
            self._monitor.notify(call)
            return result
        problem = call.attention()

        def sdpa(*args: Any, **kwargs: Any) -> Tensor:  # noqa: ARG001 - the call is known
            return edited(_run(call, problem), problem.leading, edits)

        output, _ = _with_sdpa(sdpa)(*bound.args, **bound.kwargs)
        self._monitor.notify(call)
        weights = Pattern.of(problem, None).dense(limit=None).to(output.dtype)  # (B, H, L, S)
        if bound.arguments["average_attn_weights"]:
            weights = weights.mean(dim=-3)
        return output, weights if bound.arguments["query"].ndim == 3 else weights.squeeze(0)

    def _call_inside(self, bound: inspect.BoundArguments) -> Call:
        """Run multi-head attention up to the SDPA call in it."""
        calls: list[Call] = []

        def stop(*args: Any, **kwargs: Any) -> None:
            calls.append(self._read_sdpa(*args, **kwargs))
            raise _SdpaCalled

        try:
            with self._gradients():
                _with_sdpa(stop)(*bound.args, **bound.kwargs)
        except _SdpaCalled:
            return calls[0]
        raise AssertionError("multi_head_attention_forward ends in an SDPA call")

    def _read_sdpa(self, *args: Any, **kwargs: Any) -> Call:
        with self._gradients():
            return sdpa_call(self._monitor.reducer, self._monitor.module, *args, **kwargs)

    def _gradients(self) -> torch.set_grad_enabled:
        """A graph is needed only of calls that may be computed here."""
        return torch.set_grad_enabled(self._monitor.takes_part and torch.is_grad_enabled())

    def _computed(
        self, call: Call, own: Callable[[], Tensor], backend: str | None = None
    ) -> tuple[Tensor, Problem | None]:
        """Compute a call as interventions change it: its context, and the attention if changed."""
        call, edits = self._monitor.changed(call)
        context = own() if call.changed is None else _run(call, call.changed, backend)
        if edits:
            context = edited(context, tuple(call.query.shape[:-2]), edits)
        self._monitor.notify(call)
        return context, call.changed


def _run(call: Call, problem: Problem, backend: str | None = None) -> Tensor:
    """Compute a call by a problem, whose dtype may be wider: that of another run's weights."""
    context = problem.restore(run(problem, choose_checked(problem, backend))[0])
    return context.to(call.query.dtype)


class _SdpaCalled(Exception):  # noqa: N818 - ends a function early, without an error
    pass


def _with_sdpa(sdpa: Callable[..., Any]) -> Callable[..., Any]:
    """Torch's own code of multi-head attention, calling another SDPA and no mode."""
    return _on_plain_tensors(F.multi_head_attention_forward, scaled_dot_product_attention=sdpa)


def _on_plain_tensors(own: Any, **replaced: Any) -> Callable[..., Any]:
    """The code of a function of torch that calls no mode, with some of its names replaced."""
    plain = dict.fromkeys(("has_torch_function", "has_torch_function_unary"), lambda _: False)
    names = own.__globals__ | plain | replaced
    copy = FunctionType(own.__code__, names, own.__name__, own.__defaults__, own.__closure__)
    copy.__kwdefaults__ = own.__kwdefaults__
    return copy


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
