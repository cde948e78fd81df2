"""Bringing a mask that is written down back to two integers a row, where its rows allow it.

Axes: B batch, H query heads, L queries, S keys; b, h, l and s are 1 or those.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from regard.mask import Mask, dense, intervals
from regard.record.intercept.lazy_mask import LazyMask

if TYPE_CHECKING:
    from jaxtyping import Bool, Int
    from torch import Tensor

_KEPT = 4  # masks that a model's layers take turns with


@dataclass(frozen=True, eq=False)
class Reduced:
    """A mask, and which queries it leaves without a choice.

    A row of nothing but the lowest number hides no key: beside it every score vanishes, and softmax
    spreads the row evenly, as it would for a query of zeros.
    """

    mask: Mask
    level: Bool[Tensor, "*b l"] | None = None
    """Queries whose rows are even, whatever they look for."""


class Reducer:
    """Reduces masks, and remembers the last few: the layers of a model share theirs."""

    def __init__(self) -> None:
        self._known: list[tuple[tuple[object, ...], Tensor, Reduced]] = []

    def reduce(self, mask: Tensor, leading: tuple[int, ...], queries: int, keys: int) -> Reduced:
        """Give the mask as row intervals where its rows are contiguous, else as it is.

        Args:
            mask: as torch's SDPA takes it: boolean or additive, broadcastable to
                ``(*leading, L, S)``.
            leading: leading dimensions of the weights that it is for.
            queries: L.
            keys: S.
        """
        if isinstance(mask, LazyMask):
            return reduced(mask, leading, queries, keys)
        mask = mask.detach()
        if mask.is_inference():  # it may change without a trace
            return self._shared(reduced(mask.clone(), leading, queries, keys))
        place = (mask.data_ptr(), mask.shape, mask.stride(), mask.dtype, version(mask), leading)
        for known, _, result in self._known:
            if known == place:
                return result
        result = self._shared(reduced(mask, leading, queries, keys))
        # Holding the tensor keeps its address from being given to another one.
        self._known = [*self._known[1 - _KEPT :], (place, mask, result)]
        return result

    def _shared(self, new: Reduced) -> Reduced:
        """Keep equal matrices once: a model may write one down anew for each layer."""
        for _, _, old in self._known:
            known, mask = old.mask, new.mask
            if _equal(known.allowed, mask.allowed) and _equal(known.bias, mask.bias):
                return replace(new, mask=replace(mask, allowed=known.allowed, bias=known.bias))
        return new


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.dtype == other.dtype and torch.equal(one, other)


def version(tensor: Tensor) -> int:
    """How often a tensor was written to, which tensors made in inference mode do not tell."""
    return 0 if tensor.is_inference() else tensor._version  # noqa: SLF001 - its only name


def reduced(mask: Tensor, leading: tuple[int, ...], queries: int, keys: int) -> Reduced:
    """Give a mask as row intervals where its rows are contiguous, else as it is; see `Reducer`.

    What is trained stays part of the graph, whatever its numbers are now.
    """
    if isinstance(mask, LazyMask):
        rule = mask.rule(queries, keys)
        if rule is not None:
            return Reduced(rule)
        mask = mask.written_out()
    full = _without_copies(mask.reshape((1,) * (len(leading) + 2 - mask.ndim) + mask.shape))
    if full.dtype == torch.bool:
        return Reduced(_of_visible(full, full, queries, keys))
    lowest = torch.finfo(full.dtype).min  # what many write in place of −inf
    visible = ~(full <= lowest)  # NaN is
    low = (~visible).all(-1) & (full.amax(-1) == lowest)
    level = None
    if bool(low.any()):
        even = low[..., None] & (full == lowest)
        visible = visible | even
        full = mask = torch.where(even, full - lowest, full)  # 0, which a gradient passes
        # float16's lowest number is so near that scores do not vanish beside it; all are shifted.
        level = low if lowest < torch.finfo(torch.float16).min else None
    trained = torch.is_grad_enabled() and mask.requires_grad
    adds = trained or bool((full.masked_fill(~visible, 0) != 0).any())
    return Reduced(_of_visible(visible, mask if adds else None, queries, keys), level)


def _of_visible(
    visible: Bool[Tensor, "*b l s"], matrix: Tensor | None, queries: int, keys: int
) -> Mask:
    """Find the intervals of what is visible.

    Args:
        visible: which keys are, ``(..., l, s)``.
        matrix: what else the mask says: a bias, or ``visible`` itself if it is boolean; None if it
            says nothing else.
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
