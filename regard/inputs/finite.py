"""Arithmetic in which masked keys and values never affect a result, not even NaN.

The weight of a masked key is 0, but 0 · NaN and 0 · ∞ are NaN, so with plain operations NaN in the
padding reaches results and gradients. The functions here propagate a non-finite number only to
where it is visible. For finite inputs they equal the plain operations.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from regard._contexts import is_concrete
from regard._shapes import Bool, Float


def dot_products(
    query: Float[Tensor, "B H L D"], key: Float[Tensor, "B H S D"], *, check_finite: bool
) -> Float[Tensor, "B H L S"]:
    """Compute query @ keyᵀ; a zero gradient of a score stays zero in the backward pass.

    Args:
        query: the left factor.
        key: the right factor.
        check_finite: False computes the plain product, without reading any value.
    """
    with without_autocast(query.device):
        scores = query @ key.transpose(-2, -1)
        if not check_finite or _finite(query, key):
            return scores
        clean = _nonfinite_to_zero(query) @ _nonfinite_to_zero(key).transpose(-2, -1)
    return clean + torch.where(scores.isfinite(), 0, scores).detach()


def softcapped(scores: Float[Tensor, "B H L S"], cap: float) -> Float[Tensor, "B H L S"]:
    """Compute cap·tanh(scores/cap); a zero gradient stays zero in the backward pass."""
    nan = scores.isnan()  # there the derivative of tanh is NaN, and so is 0 · NaN
    capped = cap * torch.tanh(scores.masked_fill(nan, 0) / cap)
    return capped.masked_fill(nan, torch.nan)


def weighted_sum(
    weights: Float[Tensor, "*b L S"],
    value: Float[Tensor, "*v S Dv"],
    visible: Bool[Tensor, "*w L S"],
    *,
    check_finite: bool,
) -> Float[Tensor, "*o L Dv"]:
    """Compute weights @ value; a non-finite value affects only the rows that see it.

    Args:
        weights: 0 for hidden keys.
        value: the value of each key.
        visible: True if the query may see the key.
        check_finite: False computes the plain product, without reading any value.
    """
    with without_autocast(value.device):
        if not check_finite or _finite(value):
            return weights @ value
        context = weights @ _nonfinite_to_zero(value)
        sees = visible.expand(weights.shape).to(value.dtype)
        for number in (torch.inf, -torch.inf, torch.nan):
            holds = value.isnan() if number != number else value == number  # noqa: PLR0124 - NaN differs from itself
            context = context + torch.where(sees @ holds.to(value.dtype) > 0, number, 0.0)
    return context


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Disable autocast, which would round float32 factors to a half precision."""
    if device.type == "meta":  # has no autocast
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def _finite(*tensors: Tensor) -> bool:
    """True if all values are known to be finite."""
    return is_concrete(*tensors) and all(bool(t.detach().isfinite().all()) for t in tensors)


def _nonfinite_to_zero(tensor: Tensor) -> Tensor:
    return torch.where(tensor.isfinite(), tensor, 0)
