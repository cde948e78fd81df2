"""Plain differentiable calls with cached checks, for `quick`.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension of query and
key, Dv of value.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard._contexts import are_plain, must_dispatch
from regard._shapes import Float
from regard.backends.native._arguments import Arguments, vectors
from regard.backends.native._backward import fill
from regard.backends.native._derivatives import compute
from regard.backends.native._plan import Plan
from regard.backends.native._structs import TENSOR
from regard.backends.native.library import call
from regard.inputs import Scoring, check

_NAMES = ("query", "key", "value")


def can_differentiate(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether all tensors are 4-dimensional and none is broadcast."""
    return (
        query.ndim == key.ndim == value.ndim == 4
        and key.shape[:2] == value.shape[:2]
        and key.shape[0] == query.shape[0]
    )


def attend_with_gradients(
    query: Float[Tensor, "B H L D"],
    key: Float[Tensor, "B G S D"],
    value: Float[Tensor, "B G S Dv"],
    plan: Plan,
    scoring: Scoring,
) -> Float[Tensor, "B H L Dv"]:
    """Compute a differentiable context.

    Args:
        query: a plain tensor.
        key: a plain tensor.
        value: a plain tensor.
        plan: the plan of the call, for which `can_differentiate` is true.
        scoring: equal to that of the plan.
    """
    apply: Any = _QuickAttention.apply
    context: Tensor = apply(query, key, value, plan, scoring)
    return context


class _QuickAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, plan: Plan, scoring: Scoring
    ) -> Tensor:
        context = plan.new_context(query)
        logsumexp = query.new_empty(plan.shape[:-1], dtype=torch.float32)
        packed, result = plan.of(query, key, value), TENSOR.pack(*vectors(context))
        call("regard_forward", packed, result, logsumexp.data_ptr())
        tensors = context, logsumexp, query, key, value
        # The same tensors as a checked call: under a profiler a checkpoint recomputes by one.
        ctx.save_for_backward(*tensors, *plan.saved)
        ctx.plan, ctx.scoring, ctx.layouts = plan, scoring, _layouts(*tensors)
        return context

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tensors, wanted = ctx.saved_tensors[:5], ctx.needs_input_grad[:3]
        plain = (
            not torch.is_grad_enabled()
            and not must_dispatch()
            and are_plain(gradient, *tensors)
            and ctx.layouts == _layouts(*tensors)  # saved-tensor hooks may change them
        )
        if plain:
            return *_gradients(ctx.plan, gradient, tensors, wanted), None, None
        dtypes = (dtype for _, _, dtype in ctx.layouts)
        tensors = tuple(map(Tensor.to, tensors, dtypes))
        return *_checked_gradients(ctx.scoring, gradient, tensors, wanted), None, None


def _gradients(
    plan: Plan, gradient: Tensor, tensors: tuple[Tensor, ...], wanted: tuple[bool, ...]
) -> list[Tensor | None]:
    """Compute the wanted gradients of query, key and value."""
    context, logsumexp, query, key, value = tensors
    results = {
        name: torch.empty_like(tensor, memory_format=torch.contiguous_format)
        for name, tensor, want in zip(_NAMES, (query, key, value), wanted, strict=True)
        if want
    }
    fill(plan.of(query, key, value), gradient, context, logsumexp, results)
    return [results.get(name) for name in _NAMES]


def _checked_gradients(
    scoring: Scoring, gradient: Tensor, tensors: tuple[Tensor, ...], wanted: tuple[bool, ...]
) -> list[Tensor | None]:
    """Compute them by the checked path, which supports all tensors or raises an error."""
    from regard.backends.native import _operators  # noqa: F401 - registers the operator

    context, logsumexp, query, key, value = tensors
    arguments = Arguments.of(check(query, key, value, scoring))
    others = [False] * (len(arguments) - len(wanted))
    every = gradient, context, logsumexp, [*wanted, *others], *arguments
    of = iter(compute("attention_backward", *every))
    return [next(of) if want else None for want in wanted]


def _layouts(*tensors: Tensor) -> list[tuple[object, ...]]:
    return [(tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors]
