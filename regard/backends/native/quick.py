"""The shortest way from `attention` to the kernel, for plain calls.

A call on a few tokens takes the kernel a microsecond or two, and the checks, the problem and the
dispatcher many times that. So for calls that need only a context, or its gradients too, the result
of the checks is cached by the shapes, strides and dtypes that it depends on; with a mask whose
bounds are tables, such as documents, the tables too, as long as the mask is there; with numbers of
each head, such as ALiBi's slopes, where they lie.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension of query and
key, Dv of value.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from regard._contexts import are_plain, must_dispatch
from regard.backends.native._plan import Plan, make_plan
from regard.backends.native._quick_gradients import attend_with_gradients, can_differentiate
from regard.inputs import Scoring
from regard.masks import Mask

_Plans = dict[object, Plan | None]
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
    if must_dispatch() or not are_plain(query, key, value):
        return None
    of_heads = () if alibi is None and sink is None else _places(alibi, sink)
    affine = (None, None, None) if mask is None else mask.affine
    plans = _PLANS if affine is not None else _plans_of(mask)
    wanted = _want_gradients(query, key, value)
    if plans is None or of_heads is None:
        return None
    if wanted and (of_heads or not can_differentiate(query, key, value)):
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
        plan = make_plan(query, key, value, scoring)
        if len(plans) >= (_MAX_PLANS if plans is _PLANS else _MAX_PLANS_OF_MASK):
            plans.clear()
        plans[signature] = plan
    except TypeError:  # a scale or softcap that is not a number: the checks will say so
        return None
    if plan is None:
        return None
    if wanted:
        # A plan that held its mask would keep itself alive.
        scoring = Scoring(mask=mask, scale=scale, softcap=softcap)
        return attend_with_gradients(query, key, value, plan, scoring)
    context = plan.new_context(query)
    result = plan.attend(
        plan.numbers,
        query.data_ptr(), key.data_ptr(), value.data_ptr(), context.data_ptr(),
        torch.get_num_threads(),
    )  # fmt: skip
    if result != 0:
        raise MemoryError("no memory for attention to work in")
    return context


def _places(alibi: Any, sink: Any) -> tuple[object, ...] | None:
    """Where numbers of each head lie, one at least; None if the checks have to see them."""
    given = [tensor for tensor in (alibi, sink) if tensor is not None]
    if not are_plain(*given) or _want_gradients(*given):
        return None
    places = ((t.data_ptr(), t.shape, t.stride(), t.dtype) for t in given)
    return alibi is None, *places  # which of them one alone is


def _want_gradients(*tensors: Tensor) -> bool:
    """Whether the gradient of one of them is wanted."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor.requires_grad:
                return True
    return False


def _plans_of(mask: Mask | None) -> _Plans | None:
    """The plans with a mask whose bounds are tables; None if its caller may change these."""
    if mask is None or not mask.is_fixed:
        return None
    return _PLANS_OF_MASKS.setdefault(mask, {})
