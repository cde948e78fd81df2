"""The class `Mask`, and the functions that make masks.

Nearly every mask in use is one interval of keys per query: causal, sliding window, packed
documents, padding on either side, prefix. A `Mask` stores only the parameters and computes two
integers per row, ``start`` and ``stop``, once the numbers of queries and keys are known. Masks are
combined with ``&``: the intersection of two intervals is an interval.

Any other boolean or additive mask is `dense`: it works everywhere, but costs O(L·S) memory, and
kernels cannot skip blocks of keys.

Axes: B batch, H query heads, L queries, S keys. A tensor given per sequence, such as document ids
``(B, S)``, is aligned with the leading dimensions of the query *from the left*, so it needs no axis
for the heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from regard._arguments import check_dtype, check_integers, check_tensor, check_whole, tensor_of
from regard._contexts import abstract_reason
from regard._shapes import Bool, Float, Int, Shaped
from regard._tensors import align, flat, matrix, require, upload
from regard.masks._terms import Causal, Documents, Intervals, Padding, Prefix, Term, Window, runs
from regard.masks.bounds import AffineBounds, IndexBounds, intersect_affine
from regard.masks.rows import Rows
from regard.masks.spans import ScoreChange, resolve_changes

__all__ = ["Mask", "causal", "dense", "documents", "intervals", "padding", "prefix", "window"]


@dataclass(frozen=True, eq=False)
class Mask:
    """The keys each query may see; made by the functions of this module, combined with ``&``.

    Args:
        terms: interval masks, of which this mask is the intersection.
        offset: position of query 0 among the keys; None means S − L, so that the last query has
            the position of the last key.
        positions: position of each query, ``(L,)``, if they are not consecutive; replaces offset.
        allowed: a boolean tensor broadcastable to ``(..., L, S)``, True where a key may be seen.
        bias: an additive tensor broadcastable to ``(..., L, S)``; −inf hides a key.
        score_changes: the changes of scores made by `hide`.

    Example:
        >>> import regard
        >>> start, stop = (regard.causal() & regard.window(3)).intervals(5, 5)
        >>> start.tolist(), stop.tolist()
        ([0, 0, 0, 1, 2], [1, 2, 3, 4, 5])
    """

    terms: tuple[Term, ...] = ()
    offset: int | Tensor | None = None
    positions: Tensor | None = None
    allowed: Tensor | None = None
    bias: Tensor | None = None
    score_changes: tuple[ScoreChange, ...] = ()

    def __and__(self, other: Mask) -> Mask:
        if not isinstance(other, Mask):
            return NotImplemented
        return Mask(
            terms=self.terms + other.terms,
            offset=_same_place(self.offset, other.offset, "offsets"),
            positions=_same_place(self.positions, other.positions, "positions"),
            allowed=_both(self.allowed, other.allowed, torch.logical_and),
            bias=_both(self.bias, other.bias, torch.add),
            score_changes=self.score_changes + other.score_changes,
        )

    def __bool__(self) -> bool:
        raise TypeError("a mask has no truth value; combine masks with &, not with `and`")

    def __repr__(self) -> str:
        parts = [repr(part) for part in (*self.terms, *self.score_changes)]
        if self.allowed is not None:
            parts.append(f"dense(bool {tuple(self.allowed.shape)})")
        if self.bias is not None:
            parts.append(f"dense({self.bias.dtype} {tuple(self.bias.shape)})")
        offset = "" if self.offset is None else f" at offset {self.offset}"
        return (" & ".join(parts) or "everything") + offset

    @cached_property
    def affine(self) -> tuple[int | None, int | None, int | None] | None:
        """Start and stop of a query at position 0, and the offset; None if more is needed.

        A start or stop of None hides nothing; an offset of None means S − L.
        """
        ends = intersect_affine([term.affine(0) for term in self.terms])
        if ends is None or not self._is_interval or self.positions is not None:
            return None
        return None if isinstance(self.offset, torch.Tensor) else (*ends, self.offset)

    @cached_property
    def is_fixed(self) -> bool:
        """True for an interval mask without tensors of the caller, who could mutate them."""
        placed = self.positions is not None or isinstance(self.offset, torch.Tensor)
        return self._is_interval and not placed and all(term.is_fixed for term in self.terms)

    @property
    def _is_interval(self) -> bool:
        return self.allowed is None and self.bias is None and not self.score_changes

    def intervals(
        self, queries: int, keys: int, leading: tuple[int, ...] = ()
    ) -> tuple[Int[Tensor, "*b L"], Int[Tensor, "*b L"]]:
        """Compute the first visible key of each query, and one past its last.

        Args:
            queries: L.
            keys: S.
            leading: the leading dimensions of the query, usually ``(B, H)``.

        Returns:
            start, stop: integers ``(*leading, L)``; equal if the query is fully masked.

        Raises:
            ValueError: if the mask contains `dense` or `hide`, which are not intervals.
        """
        if not self._is_interval:
            raise ValueError(f"mask is {self!r}: dense and hide are not intervals; call visible()")
        rows = self.resolve(leading, queries, keys, torch.device("cpu"))
        shape = (*leading, queries)
        return rows.spread(rows.start).reshape(shape), rows.spread(rows.stop).reshape(shape)

    def visible(
        self, queries: int, keys: int, leading: tuple[int, ...] = ()
    ) -> Bool[Tensor, "*b L S"]:
        """Compute the whole mask: True if the query may see the key, ``(*leading, L, S)``."""
        rows = self.resolve(leading, queries, keys, torch.device("cpu"))
        visible = rows.visible(slice(0, queries), slice(0, keys))
        return visible.expand(*rows.heads, queries, keys).reshape(*leading, queries, keys)

    def resolve(
        self, leading: tuple[int, ...], queries: int, keys: int, device: torch.device
    ) -> Rows:
        """Compute the rows of the mask for given sizes, as backends and readouts use them."""
        heads = flat(leading)
        bounds, spans = self._bounds(leading, queries, keys, device), None
        if self.score_changes:
            bounds, spans = resolve_changes(self.score_changes, bounds, keys, heads[1])
        return Rows(
            heads=heads,
            keys=keys,
            bounds=bounds,
            spans=spans,
            allowed=matrix(self.allowed, "mask", leading, queries, keys, device),
            bias=matrix(self.bias, "mask", leading, queries, keys, device),
        )

    def _bounds(
        self, leading: tuple[int, ...], queries: int, keys: int, device: torch.device
    ) -> AffineBounds | IndexBounds:
        offset: int | Tensor = keys - queries if self.offset is None else self.offset
        if self.positions is not None:
            positions = align(upload(self.positions, device), leading, "positions")
        elif isinstance(offset, torch.Tensor):
            offset = align(upload(offset, device)[..., None], leading, "offset")
            positions = offset + torch.arange(queries, device=device)
        else:  # an int, or a symbolic one in a graph
            ends = intersect_affine([term.affine(offset) for term in self.terms])
            if ends is not None:
                return AffineBounds(queries, keys, device, offset, *ends)
            positions = offset + torch.arange(queries, device=device).expand(1, 1, -1)
        start, stop = torch.zeros_like(positions), torch.full_like(positions, keys)
        for term in self.terms:
            low, high = term.bounds(positions, keys, leading)
            # Clamp by a number: converting it to a tensor would copy and synchronize with the GPU.
            start = torch.maximum(start, low) if isinstance(low, Tensor) else start.clamp(min=low)
            stop = torch.minimum(stop, high) if isinstance(high, Tensor) else stop.clamp(max=high)
        start = start.clamp(0, keys)
        start, stop = torch.broadcast_tensors(start, torch.maximum(start, stop.clamp(0, keys)))
        return IndexBounds(positions, start, stop)


# Shared by all calls: masks are immutable, and creating one would dominate a short call.
_CAUSAL = Mask((Causal(),))


def causal(*, offset: int | Int[Tensor, "*b"] | None = None) -> Mask:
    """Let each query see its own position and all earlier ones.

    Args:
        offset: position of query 0 among the keys, one number or one per sequence ``(B,)``. The
            default is S − L: the last query has the position of the last key, as when decoding
            with a cache. torch's ``is_causal`` is ``offset=0``.

    Example:
        >>> import regard
        >>> regard.causal().visible(2, 3).int().tolist()
        [[1, 1, 0], [1, 1, 1]]
    """
    return _CAUSAL if offset is None else Mask((Causal(),), _checked_offset(offset))


def window(size: int, *, ahead: int = 0, offset: int | Int[Tensor, "*b"] | None = None) -> Mask:
    """Let each query see the last ``size`` positions, its own included, and ``ahead`` later ones.

    Args:
        size: number of positions, the query's own included, at least 1
            (Beltagy et al. 2020, arXiv:2004.05150, section 3.1).
        ahead: number of later positions that may be seen.
        offset: as for `causal`.

    Example:
        >>> import regard
        >>> regard.window(2).visible(3, 3).int().tolist()
        [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    check_whole(size, "size")
    check_whole(ahead, "ahead")
    if size < 1 or ahead < 0:
        raise ValueError(f"window needs size ≥ 1 and ahead ≥ 0, but got size={size}, ahead={ahead}")
    return Mask((Window(size, ahead),), _checked_offset(offset))


def prefix(
    length: int | Int[Tensor, "*b"], *, offset: int | Int[Tensor, "*b"] | None = None
) -> Mask:
    """Let every query see the first ``length`` keys, and after them only keys that are not later.

    Args:
        length: number of keys that all may see, one number or one per sequence ``(B,)``
            (Raffel et al. 2020, arXiv:1910.10683, section 3.2.1).
        offset: as for `causal`.

    Example:
        >>> import regard
        >>> regard.masks.prefix(2).visible(3, 3).int().tolist()
        [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
    """
    if isinstance(length, torch.Tensor):
        check_integers(length, "length")
    else:
        check_whole(length, "length")
        if length < 0:
            raise ValueError(f"length must not be negative, but is {length}")
    return Mask((Prefix(length),), _checked_offset(offset))


def documents(ids: Int[Tensor, "*b S"], *, offset: int | Int[Tensor, "*b"] | None = None) -> Mask:
    """Separate packed documents: a query sees only the keys of its own document.

    Args:
        ids: document number of each key, ``(S,)`` or ``(B, S)``; equal numbers are adjacent.
        offset: as for `causal`.

    Raises:
        ValueError: if a document is in two pieces, so that its keys are not an interval. Ids on
            CUDA are checked by an assertion on the device, which avoids synchronization.

    Example:
        >>> import regard, torch
        >>> packed = regard.documents(torch.tensor([7, 7, 9]))
        >>> (packed & regard.causal()).visible(3, 3).int().tolist()
        [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    """
    _check_positions(ids, "ids")
    check_integers(ids, "ids")
    _require_values(ids, "ids")
    changes = ids[..., 1:] != ids[..., :-1]
    ordered = ids.sort(dim=-1).values
    distinct = ordered[..., 1:] != ordered[..., :-1]
    if not ids.is_meta:
        require(
            (changes.sum(-1) == distinct.sum(-1)).all(),
            "ids has a document in two pieces, so its keys are not an interval; "
            "give each piece its own number or pass dense(ids[..., :, None] == ids[..., None, :])",
        )
    return Mask((Documents(*runs(changes, ids)),), _checked_offset(offset))


def padding(keep: Bool[Tensor, "*b S"] | Int[Tensor, "*b S"]) -> Mask:
    """Hide padding: every query sees only the keys that are kept.

    Args:
        keep: True or 1 for tokens, False or 0 for padding, ``(S,)`` or ``(B, S)``, like the
            ``attention_mask`` of a tokenizer. Padding may be on either side, or on both.

    Raises:
        ValueError: if there is padding between tokens, since the rest is not an interval; on CUDA
            as for `documents`.

    Example:
        >>> import regard, torch
        >>> regard.padding(torch.tensor([0, 1, 1, 0])).visible(1, 4).int().tolist()
        [[0, 1, 1, 0]]
    """
    _check_positions(keep, "keep")
    _require_values(keep, "keep")
    if keep.dtype != torch.bool:
        check_integers(keep, "keep")
        if not keep.is_meta:
            require(
                ((keep == 0) | (keep == 1)).all(),
                "keep holds numbers other than 0 and 1; for token ids, compare first",
            )
    kept = keep.bool()
    index = torch.arange(kept.shape[-1], device=kept.device)
    stop = torch.where(kept, index + 1, 0).amax(-1) if index.numel() else kept.sum(-1)
    start = stop - kept.sum(-1)
    if not keep.is_meta:
        require(
            (kept == ((index >= start[..., None]) & (index < stop[..., None]))).all(),
            "keep has padding between tokens, so the keys are not an interval; "
            "pass dense(keep[..., None, :].bool())",
        )
    return Mask((Padding(start, stop, kept.shape[-1]),))


def intervals(
    start: Int[Tensor, "*b L"],
    stop: Int[Tensor, "*b L"],
    *,
    offset: int | Int[Tensor, "*b"] | None = None,
) -> Mask:
    """Let each query see the keys from its start to just before its stop.

    Args:
        start: the first visible key of each query, ``(L,)``, ``(B, L)`` or ``(B, H, L)``.
        stop: one past the last visible key, of the same shape; where it is not above start, the
            query is fully masked.
        offset: as for `causal`; it places the queries, and hides nothing.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> import regard, torch
        >>> mask = regard.masks.intervals(torch.tensor([0, 1]), torch.tensor([1, 3]))
        >>> mask.visible(2, 3).int().tolist()
        [[1, 0, 0], [0, 1, 1]]
    """
    for name, bound in (("start", start), ("stop", stop)):
        _check_positions(bound, name)
        check_integers(bound, name)
    if start.shape != stop.shape:
        raise ValueError(
            f"start has shape {tuple(start.shape)} and stop {tuple(stop.shape)}; give one of each "
            "per query"
        )
    return Mask((Intervals(start, stop),), _checked_offset(offset))


def dense(mask: Bool[Tensor, "..."] | Float[Tensor, "..."]) -> Mask:
    """Make a mask from a boolean or additive tensor.

    Args:
        mask: broadcastable to ``(B, H, L, S)`` from the right, as in torch's SDPA. Boolean: True
            where a key may be seen. Floating point: added to the scaled scores; −inf hides a key.
            It may require a gradient.

    Raises:
        TypeError: for any other dtype.

    Example:
        >>> import regard, torch
        >>> regard.dense(torch.eye(2, dtype=torch.bool)).visible(2, 2).int().tolist()
        [[1, 0], [0, 1]]
    """
    check_tensor(mask, "mask")
    if mask.dtype == torch.bool:
        return Mask(allowed=mask)
    if mask.is_floating_point():
        check_dtype(mask, "mask")
        return Mask(bias=mask)
    raise TypeError(f"mask must be bool or floating point, but is {mask.dtype}; try mask.bool()")


def _checked_offset(offset: int | Tensor | None) -> int | Tensor | None:
    if isinstance(offset, torch.Tensor):
        check_integers(offset, "offset")
    elif offset is not None:
        check_whole(offset, "offset")
    return offset


def _check_positions(tensor: object, name: str) -> None:
    check_tensor(tensor, name)
    assert isinstance(tensor, torch.Tensor), "it has just been checked"
    if tensor.ndim == 0:
        raise ValueError(f"{name} needs an axis with one entry per key, but is a single number")


def _require_values(tensor: Shaped[Tensor, "..."], name: str) -> None:
    if torch.compiler.is_compiling() or tensor.is_meta:
        return
    why = abstract_reason(tensor, in_trace=False)
    if why is not None:
        raise ValueError(
            f"{name} can't be checked under {why}; make the mask outside it, or hide keys with "
            "dense(...)"
        )


def _both(
    one: Tensor | None, other: Tensor | None, combine: Callable[[Tensor, Tensor], Tensor]
) -> Tensor | None:
    """Combine two dense parts; None stands for a missing one."""
    if one is None or other is None:
        return one if other is None else other
    try:
        return combine(one, other)
    except RuntimeError as error:
        raise ValueError(
            f"dense masks joined by & do not broadcast: {tuple(one.shape)}, {tuple(other.shape)}"
        ) from error


def _same_place(one: Any, other: Any, name: str) -> Any:
    """Return the offset, or the positions, that two masks share.

    Raises:
        ValueError: if they differ; for tensors on CUDA, an assertion runs on the device instead.
    """
    if one is None or other is None:
        return one if other is None else other
    if one is other:
        return one
    tensors = [place for place in (one, other) if isinstance(place, torch.Tensor)]
    message = f"masks joined by & have different {name}"
    if any(tensor.is_cuda for tensor in tensors):
        require((tensor_of(one) == tensor_of(other)).all(), message)
    elif not torch.equal(tensor_of(one), tensor_of(other)):
        raise ValueError(f"{message}: {one}, {other}")
    return one
