"""The shortest way from `attention` to the kernel, for plain calls.

A call on a few tokens takes the kernel a microsecond or two, and the checks, the problem and the
dispatcher many times that. So for calls that need only a context, the result of the checks is
cached by the shapes, strides and dtypes that it depends on; with a mask whose bounds are tables,
such as documents, the tables too, as long as the mask is there; with numbers of each head, such as
ALiBi's slopes, where they lie.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension of query and
key, Dv of value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from regard._contexts import are_plain, must_dispatch
from regard.backends.native import library, objection
from regard.backends.native._arguments import Arguments
from regard.mask import Mask
from regard.problem import Scoring, check


class _Plan(NamedTuple):
    """The part of a call that depends on shapes, strides and dtypes alone."""

    numbers: bytes
    """The problem, whose pointers are replaced."""
    call: Callable[..., int]
    shape: tuple[int, ...]
    """Of the context."""
    like_query: bool
    """Whether the context lies in memory as the query does, which torch allocates faster."""
    tables: list[Tensor]
    """Those of the mask, whose addresses are among the numbers."""


_Plans = dict[object, _Plan | None]
_PLANS: _Plans = {}  # with masks that are numbers
_MAX_PLANS = 4096
_PLANS_OF_MASKS: WeakKeyDictionary[Mask, _Plans] = WeakKeyDictionary()
_MAX_PLANS_OF_MASK = 32  # each has tables of its own


def quick(
    query: Any,
    key: Any,
    value: Any,
    mask: Mask | None,
    scale: Any,
    softcap: Any,
    alibi: Any,
    sink: Any,
) -> Tensor | None:
    """Compute the context at once, or None where the call needs the checks and the dispatcher.

    The arguments are unchecked.
    """
    if must_dispatch() or not _are_plain(query, key, value):
        return None
    of_heads: tuple[object, ...] = ()
    if alibi is not None or sink is not None:
        given = [tensor for tensor in (alibi, sink) if tensor is not None]
        if not _are_plain(*given):
            return None
        places = ((t.data_ptr(), t.shape, t.stride(), t.dtype) for t in given)
        of_heads = alibi is None, *places  # which of them one alone is
    affine = (None, None, None) if mask is None else mask.affine
    plans = _PLANS if affine is not None else _plans_of(mask)
    if plans is None:
        return None
    signature = (
        query.shape, key.shape, value.shape,
        query.stride(), key.stride(), value.stride(),
        query.dtype, key.dtype, value.dtype,
        affine, scale, type(scale), softcap, type(softcap), of_heads,
    )  # fmt: skip
    try:
        plan = plans[signature]
    except KeyError:
        scoring = Scoring(mask=mask, scale=scale, softcap=softcap, alibi=alibi, sink=sink)
        plan = _plan(query, key, value, scoring)
        if len(plans) >= (_MAX_PLANS if plans is _PLANS else _MAX_PLANS_OF_MASK):
            plans.clear()
        plans[signature] = plan
    except TypeError:  # a scale or softcap that is not a number: the checks will say so
        return None
    if plan is None:
        return None
    context = torch.empty_like(query) if plan.like_query else query.new_empty(plan.shape)
    result = plan.call(
        plan.numbers,
        query.data_ptr(), key.data_ptr(), value.data_ptr(), context.data_ptr(),
        torch.get_num_threads(),
    )  # fmt: skip
    if result != 0:
        raise MemoryError("no memory for attention to work in")
    return context


def _are_plain(*tensors: Any) -> bool:
    """Whether these are torch's own tensors on the CPU, whose gradients are not wanted."""
    if not are_plain(*tensors):
        return False
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor.requires_grad:
                return False
    return True


def _plans_of(mask: Mask | None) -> _Plans | None:
    """The plans with a mask whose bounds are tables; None if its caller may change these."""
    if mask is None or not mask.is_fixed:
        return None
    return _PLANS_OF_MASKS.setdefault(mask, {})


def _plan(query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> _Plan | None:
    """Check a call of this kind once; wrong arguments raise here as they do everywhere."""
    problem = check(query, key, value, scoring)
    loaded = library.load()
    in_place = all(
        one.data_ptr() == other.data_ptr() and (one.stride(-1) == 1 or one.shape[-1] <= 1)
        for one, other in zip(
            (problem.query, problem.key, problem.value), (query, key, value), strict=True
        )
        if other is not None and one is not None
    )
    of_heads = ((problem.alibi, scoring.alibi), (problem.sink, scoring.sink))
    in_place = in_place and all(
        one.data_ptr() == other.data_ptr() and other.dtype == torch.float32
        for one, other in of_heads
        if other is not None and one is not None
    )
    if loaded is None or objection(problem) is not None or not in_place:
        return None
    numbers, kept = Arguments.of(problem).pack()
    tables = [tensor for tensor in kept if not tensor.is_floating_point()]
    shape = (*query.shape[:-1], value.shape[-1])
    like_query = shape == query.shape and query.is_contiguous()
    return _Plan(numbers, loaded.regard_attend, shape, like_query, tables)
