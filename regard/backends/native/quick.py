"""The fast path from `attention` to the kernel, for plain calls.

For a few tokens the kernel takes a microsecond or two, and the checks and the dispatcher many times
that. Calls that need a context only, or its gradients too, therefore cache the result of the checks
by shapes, strides and dtypes. If the bounds of a mask are tables, as for documents, the cache
belongs to the mask and holds them; numbers per head, such as ALiBi slopes, are cached by address.

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
_PLANS: _Plans = {}  # for masks with affine bounds
_MAX_PLANS = 4096
_PLANS_OF_MASKS: WeakKeyDictionary[Mask, _Plans] = WeakKeyDictionary()
_MAX_PLANS_OF_MASK = 32  # each holds its own tables


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
    """Compute the context ``(B, H, L, Dv)``, or return None if the call is not plain.

    The arguments are those of `attention`, unchecked.
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
    except TypeError:  # a scale or softcap that is not hashable: the checks raise an error
        return None
    if plan is None:
        return None
    if wanted:
        # The scoring is not cached: a plan that held its mask would keep itself alive.
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
    """Return addresses and layouts of numbers per head; None if they are not plain."""
    given = [tensor for tensor in (alibi, sink) if tensor is not None]
    if not are_plain(*given) or _want_gradients(*given):
        return None
    places = ((t.data_ptr(), t.shape, t.stride(), t.dtype) for t in given)
    return alibi is None, *places  # tells which of the two was given


def _want_gradients(*tensors: Tensor) -> bool:
    """Whether autograd needs the gradient of one of them."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor.requires_grad:
                return True
    return False


def _plans_of(mask: Mask | None) -> _Plans | None:
    """Return the plans of a mask whose bounds are tables; None if the tables may change."""
    if mask is None or not mask.is_fixed:
        return None
    return _PLANS_OF_MASKS.setdefault(mask, {})
