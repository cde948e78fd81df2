"""Reducing mask tensors to two integers a row, where rows are contiguous.

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

_ENTRIES = 2**22  # of a mask that are evaluated at a time
_CACHED = 4  # masks that a model's layers use in turn


@dataclass(frozen=True, eq=False)
class ReducedMask:
    """A mask, and the queries whose rows it makes uniform.

    A row of nothing but the lowest number hides no key: beside it every score vanishes, and the
    weights are uniform, as for a query of zeros.
    """

    mask: Mask
    uniform: Bool[Tensor, "*b l"] | None = None
    """Queries whose weights are uniform."""


class MaskReducer:
    """Reduces masks, and caches the last few: the layers of a model share theirs."""

    def __init__(self) -> None:
        self._cache: list[tuple[tuple[object, ...], Tensor, ReducedMask]] = []

    def reduce(
        self, mask: Tensor, leading: tuple[int, ...], queries: int, keys: int
    ) -> ReducedMask:
        """Reduce a mask to row intervals where its rows are contiguous; else keep the matrix.

        Args:
            mask: as torch's SDPA takes it: boolean or additive, broadcastable to
                ``(*leading, L, S)``.
            leading: leading dimensions of the weights that it is for.
            queries: L.
            keys: S.
        """
        if isinstance(mask, LazyMask):
            return reduce_mask(mask, leading, queries, keys)
        if transforms():  # what is cached outlives them
            with without_transforms():
                return self.reduce(unwrapped(mask), leading, queries, keys)
        mask = mask.detach()
        if mask.is_inference():  # its changes are not counted
            return self._shared(reduce_mask(mask.clone(), leading, queries, keys))
        size = (*leading, queries, keys)
        place = (mask.data_ptr(), mask.shape, mask.stride(), mask.dtype, version(mask), size)
        for known, _, result in self._cache:
            if known == place:
                return result
        result = self._shared(reduce_mask(mask, leading, queries, keys))
        # Holding the tensor keeps its address from being given to another one.
        self._cache = [*self._cache[1 - _CACHED :], (place, mask, result)]
        return result

    def _shared(self, new: ReducedMask) -> ReducedMask:
        """Keep equal matrices once: a model may write one down anew for each layer."""
        for _, _, old in self._cache:
            known, mask = old.mask, new.mask
            if _equal(known.allowed, mask.allowed) and _equal(known.bias, mask.bias):
                return replace(new, mask=replace(mask, allowed=known.allowed, bias=known.bias))
        return new


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.dtype == other.dtype and torch.equal(one, other)


def reduce_mask(mask: Tensor, leading: tuple[int, ...], queries: int, keys: int) -> ReducedMask:
    """Reduce a mask without a cache; see `MaskReducer.reduce`.

    A mask that takes a gradient stays part of the graph, whatever its numbers are.
    """
    if isinstance(mask, LazyMask):
        rule = mask.rule(queries, keys)
        if rule is not None:
            return ReducedMask(rule)
        mask = mask.written_out()
    full = _without_copies(mask.reshape((1,) * (len(leading) + 2 - mask.ndim) + mask.shape))
    if full.dtype == torch.bool:
        return ReducedMask(_intervals(full, full, queries, keys))
    lowest = torch.finfo(full.dtype).min  # what many write in place of −inf
    visible = ~(full <= lowest)  # NaN is
    low = (~visible).all(-1) & (full.amax(-1) == lowest)
    uniform = None
    if bool(low.any()):
        even = low[..., None] & (full == lowest)
        visible = visible | even
        full = mask = torch.where(even, full - lowest, full)  # 0, which a gradient passes
        # float16's lowest number is so near that scores do not vanish beside it; all are shifted.
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
    """Evaluate a mask some rows at a time, and keep where rows start and stop.

    If a row has gaps, the whole matrix is kept.

    Args:
        evaluate: makes the rows from a first one on, so many.
        leading: leading dimensions of the weights that it is for.
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
        visible: which keys are, ``(..., l, s)``.
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
    """Undo `expand` along the leading axes, so that heads that share a mask are looked at once."""
    for axis in range(mask.ndim - 2):
        if mask.stride(axis) == 0 and mask.shape[axis] > 1:
            mask = mask.narrow(axis, 0, 1)
    return mask


def _runs(
    visible: Bool[Tensor, "*b l S"],
) -> tuple[Int[Tensor, "*b l"], Int[Tensor, "*b l"], bool]:
    """Find where the visible keys of each row start and stop, and whether they have no gaps."""
    if visible.shape[-1] == 0:
        nothing = visible.sum(-1)
        return nothing, nothing, True
    start = visible.byte().argmax(-1)
    stop = start + visible.sum(-1)
    edges = (visible[..., 1:] > visible[..., :-1]).sum(-1) + visible[..., 0]
    return start, stop, bool((edges <= 1).all())


def _offset(stop: Int[Tensor, "*b L"]) -> int | None:
    """Find where query 0 sits, if each query sees one key more than the one before.

    A key/value cache of fixed size is longer than what it holds, so that S − L would say nothing.
    """
    latest = stop.reshape(-1, stop.shape[-1]).amax(0) if stop.numel() else stop.new_zeros(0)
    if latest.numel() == 0 or latest[0] < 1 or not bool((latest.diff() == 1).all()):
        return None
    return int(latest[0]) - 1
