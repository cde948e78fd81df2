"""Reduces mask tensors to two integers per row if rows are contiguous.

Axes: B batch, H query heads, L queries, S keys; b, h, l and s are 1 or those.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard._contexts import transforms, unwrapped, without_transforms
from regard._shapes import Bool, Int
from regard._tensors import version
from regard.intercept._lazy_mask import LazyMask
from regard.masks import Mask, dense, intervals

_ENTRIES = 2**22  # mask entries evaluated at a time
_CACHED = 4  # number of masks that a model's layers alternate between


@dataclass(frozen=True, eq=False)
class ReducedMask:
    """A mask, and the queries whose rows it makes uniform.

    A row of only the lowest number hides no key: adding it absorbs every score, so the weights are
    uniform, as for a zero query.
    """

    mask: Mask
    uniform: Bool[Tensor, "*b l"] | None = None
    """Queries whose weights are uniform."""


class MaskReducer:
    """Reduces masks, with a cache of the last few, since layers share masks."""

    def __init__(self) -> None:
        self._cache: list[tuple[tuple[object, ...], Tensor, ReducedMask]] = []

    def reduce(
        self, mask: Tensor, leading: tuple[int, ...], queries: int, keys: int
    ) -> ReducedMask:
        """Reduce a mask to row intervals if its rows are contiguous; otherwise keep the matrix.

        Args:
            mask: a mask of torch's SDPA: boolean or additive, broadcastable to
                ``(*leading, L, S)``.
            leading: leading dimensions of the weights.
            queries: L.
            keys: S.
        """
        if isinstance(mask, LazyMask):
            return reduce_mask(mask, leading, queries, keys)
        if transforms():  # cached tensors outlive the transforms
            with without_transforms():
                return self.reduce(unwrapped(mask), leading, queries, keys)
        mask = mask.detach()
        if mask.is_inference():  # inference tensors have no version counter
            return self._shared(reduce_mask(mask.clone(), leading, queries, keys))
        size = (*leading, queries, keys)
        place = (mask.data_ptr(), mask.shape, mask.stride(), mask.dtype, version(mask), size)
        for known, _, result in self._cache:
            if known == place:
                return result
        result = self._shared(reduce_mask(mask, leading, queries, keys))
        # Keeping the tensor alive prevents reuse of its address.
        self._cache = [*self._cache[1 - _CACHED :], (place, mask, result)]
        return result

    def _shared(self, new: ReducedMask) -> ReducedMask:
        """Deduplicate equal matrices, since a model may create a new one per layer."""
        for _, _, old in self._cache:
            known, mask = old.mask, new.mask
            if equal(known.allowed, mask.allowed) and equal(known.bias, mask.bias):
                return replace(new, mask=replace(mask, allowed=known.allowed, bias=known.bias))
        return new


def equal(one: Tensor | None, other: Tensor | None) -> bool:
    """Return True for tensors with the same dtype, shape and values, and for two missing ones."""
    if one is None or other is None:
        return one is other
    return one.dtype == other.dtype and torch.equal(one, other)


def reduce_mask(mask: Tensor, leading: tuple[int, ...], queries: int, keys: int) -> ReducedMask:
    """Reduce a mask without a cache; see `MaskReducer.reduce`.

    A mask that requires a gradient remains part of the graph.
    """
    if isinstance(mask, LazyMask):
        rule = mask.rule(queries, keys)
        if rule is not None:
            return ReducedMask(rule)
        mask = mask.written_out()
    full = _without_copies(mask.reshape((1,) * (len(leading) + 2 - mask.ndim) + mask.shape))
    if full.dtype == torch.bool:
        return ReducedMask(_intervals(full, full, queries, keys))
    lowest = torch.finfo(full.dtype).min  # often used in place of −inf
    visible = ~(full <= lowest)  # NaN is
    low = (~visible).all(-1) & (full.amax(-1) == lowest)
    uniform = None
    if bool(low.any()):
        even = low[..., None] & (full == lowest)
        visible = visible | even
        full = mask = torch.where(even, full - lowest, full)  # 0, which a gradient passes
        # float16's lowest number is too small to absorb scores; it shifts all of them equally.
        uniform = low if lowest < torch.finfo(torch.float16).min else None
    trained = torch.is_grad_enabled() and mask.requires_grad
    adds = trained or bool((full.masked_fill(~visible, 0) != 0).any())
    return ReducedMask(_intervals(visible, mask if adds else None, queries, keys), uniform)


def reduce_function(
    evaluate: Callable[[int, int], Bool[Tensor, "#b #h l S"]],
    leading: tuple[int, ...],
    queries: int,
    keys: int,
) -> Mask:
    """Evaluate a mask in blocks of rows, and reduce it to starts and stops of rows.

    If a row has gaps, the dense matrix is kept.

    Args:
        evaluate: returns rows, given the first row and their number.
        leading: leading dimensions of the weights.
        queries: L.
        keys: S.
    """
    height = max(1, _ENTRIES // max(1, leading[0] * keys))
    bounds = []
    for first in range(0, queries, height):
        rows = evaluate(first, min(height, queries - first))
        start, stop, contiguous = _runs(rows)
        if not contiguous:
            return dense(evaluate(0, queries))
        bounds.append((start, stop))
    if not bounds:
        return Mask()
    start, stop = (torch.cat(part, dim=-1) for part in zip(*bounds, strict=True))
    return intervals(start, stop, offset=_offset(stop))


def _intervals(
    visible: Bool[Tensor, "*b l s"], matrix: Tensor | None, queries: int, keys: int
) -> Mask:
    """Find the interval of visible keys in each row.

    Args:
        visible: whether keys are visible, ``(..., l, s)``.
        matrix: a bias, or ``visible`` itself if the mask is boolean; None if the mask only hides.
        queries: L.
        keys: S.
    """
    start, stop, contiguous = _runs(visible.expand(*visible.shape[:-1], keys))
    if not contiguous:
        return dense(visible if matrix is None else matrix)
    start, stop = (bound.expand(*bound.shape[:-1], queries) for bound in (start, stop))
    seen = intervals(start, stop, offset=_offset(stop))
    adds = matrix is not None and matrix.dtype != torch.bool
    return seen & dense(matrix) if adds and matrix is not None else seen


def _without_copies(mask: Tensor) -> Tensor:
    """Undo `expand` along the leading axes, so that shared masks are evaluated once."""
    for axis in range(mask.ndim - 2):
        if mask.stride(axis) == 0 and mask.shape[axis] > 1:
            mask = mask.narrow(axis, 0, 1)
    return mask


def _runs(
    visible: Bool[Tensor, "*b l S"],
) -> tuple[Int[Tensor, "*b l"], Int[Tensor, "*b l"], bool]:
    """Return start and stop of the visible keys of each row, and whether rows have no gaps."""
    if visible.shape[-1] == 0:
        nothing = visible.sum(-1)
        return nothing, nothing, True
    start = visible.byte().argmax(-1)
    stop = start + visible.sum(-1)
    edges = (visible[..., 1:] > visible[..., :-1]).sum(-1) + visible[..., 0]
    return start, stop, bool((edges <= 1).all())


def _offset(stop: Int[Tensor, "*b L"]) -> int | None:
    """Return the position of query 0, if each query sees one key more than the previous one.

    A cache of fixed size may have unused entries, so S − L would be wrong.
    """
    latest = stop.reshape(-1, stop.shape[-1]).amax(0) if stop.numel() else stop.new_zeros(0)
    if latest.numel() == 0 or latest[0] < 1 or not bool((latest.diff() == 1).all()):
        return None
    return int(latest[0]) - 1
