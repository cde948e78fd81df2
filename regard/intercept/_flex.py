"""Reads calls of ``torch.nn.attention.flex_attention.flex_attention``.

Its mask_mod is evaluated for all queries and keys, and reduced to two integers per row if rows are
contiguous. Its score_mod may be any function (Dong et al. 2024, arXiv:2412.05496); what can be
recorded is ``cap·tanh(a·score/cap) + bias``. The numbers a and cap and the bias are determined by
probing, and verified at every score of the call.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension; b, h are 1 or
those.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard._contexts import to_autocast_dtype
from regard._shapes import Bool, Float
from regard.errors import RecordError
from regard.inputs import Scoring
from regard.intercept._call import Call
from regard.intercept._library_call import LibraryCall
from regard.intercept._mask_reduction import reduce_function, reduce_mask
from regard.masks import Mask
from regard.sdpa import broadcast

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

_ENTRIES = 2**22  # scores compared at a time
_LARGE = 1e30  # larger than every softcap
_ROUNDING = 2.0**-20  # relative to the terms: a score_mod may compute in float32
_HIDING = 1e6  # largest bias that leaves enough digits to scores


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor] | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    return_lse: bool = False,  # noqa: ARG001, FBT001, FBT002
    kernel_options: dict[str, Any] | None = None,  # noqa: ARG001 - of the kernel's launch
    *,
    return_aux: Any = None,  # noqa: ARG001
) -> LibraryCall:
    """Read a call of tensors ``(B, H, L, D)`` and ``(B, G, S, D)``.

    Raises:
        RecordError: for a score_mod of another form, and for a block_mask inconsistent with its
            mask_mod.
    """
    query, key, value = (to_autocast_dtype(tensor) for tensor in (query, key, value))
    query, key, value = broadcast(query, key, value, grouped=enable_gqa)
    mask = Mask() if block_mask is None else _mask(block_mask, query, key)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    softcap = None
    if score_mod is not None:
        found = _Scores(score_mod, query, key, scale, mask).read()
        scale, softcap = scale * found.factor, found.softcap
        offset = found.mask.offset if mask.offset is None else mask.offset
        mask = mask & replace(found.mask, offset=offset)
    return LibraryCall(
        call=Call(
            query=query,
            key=key,
            value=value,
            scoring=Scoring(mask=mask, scale=scale, softcap=softcap),
        ),
        to_heads=lambda context: context,
        from_heads=lambda context: context,
        returns_more="return_lse and return_aux",
    )


def _mask(block_mask: BlockMask, query: Tensor, key: Tensor) -> Mask:
    """Evaluate a mask_mod, and compare it with the blocks, which compiled kernels use."""
    queries, keys = query.shape[-2], key.shape[-2]
    height, width = block_mask.BLOCK_SIZE
    mask_mod = _over_places(block_mask.mask_mod, ())
    # Torch expands results that do not depend on the batch entry or the head.
    a_row = mask_mod(
        *(torch.arange(size, device=query.device) for size in (*query.shape[:2], 1, keys))
    )
    batch, heads = (
        size if stride else 1 for size, stride in zip(query.shape, a_row.stride()[:2], strict=False)
    )
    partial = _blocks(block_mask.kv_num_blocks, block_mask.kv_indices)
    full = _blocks(block_mask.full_kv_num_blocks, block_mask.full_kv_indices)

    def evaluate(first: int, count: int) -> Bool[Tensor, "b h l S"]:
        b, h, q, k = (
            torch.arange(size, device=query.device) for size in (batch, heads, count, keys)
        )
        visible = mask_mod(b, h, q + first, k)
        block = (..., (q + first)[:, None] // height, k // width)
        whole = torch.zeros_like(visible) if full is None else full[block]
        assert partial is not None, "a block mask has these"
        if bool((visible & ~partial[block] & ~whole).any() or (whole & ~visible).any()):
            raise RecordError(
                "block_mask of flex_attention has blocks that are not those of its mask_mod, so "
                "that its kernels compute different attention; make it by create_block_mask"
            )
        return visible

    return reduce_function(evaluate, (batch, heads), queries, keys)


def _blocks(counts: Tensor | None, indices: Tensor | None) -> Bool[Tensor, "b h m n"] | None:
    """Return which of n key blocks are listed for each of m query blocks."""
    if counts is None or indices is None:
        return None
    columns = indices.shape[-1]
    listed = torch.arange(columns, device=indices.device) < counts[..., None]
    index = torch.where(listed, indices, columns).long()  # an extra column for unlisted blocks
    table = torch.zeros((*index.shape[:-1], columns + 1), dtype=torch.bool, device=indices.device)
    return table.scatter(-1, index, value=True)[..., :-1]


def _over_places(mod: Callable[..., Tensor], before: tuple[int, ...]) -> Callable[..., Tensor]:
    """Vectorize a function of one batch entry, head, query and key, as torch does."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
    from torch.nn.attention.flex_attention import _vmap_for_bhqkv

    each = _vmap_for_bhqkv(mod, prefix=before)

    def call(*arguments: Tensor) -> Tensor:
        with TransformGetItemToIndex():
            result: Tensor = each(*arguments)
        return result

    return call


@dataclass(frozen=True, eq=False)
class _Form:
    """``cap·tanh(a·score/cap) + bias``."""

    factor: float = 1.0
    softcap: float | None = None
    mask: Mask = Mask()  # noqa: RUF009 - it can't be changed
    """The bias."""


class _Scores:
    """The scores of a call before and after its score_mod.

    Args:
        score_mod: takes a score, and the indices of batch entry, head, query and key.
        query: ``(B, H, L, D)``.
        key: ``(B, G, S, D)``.
        scale: factor on the scores.
        mask: entries it hides are ignored.
    """

    def __init__(
        self, score_mod: Callable[..., Tensor], query: Tensor, key: Tensor, scale: float, mask: Mask
    ) -> None:
        batch, heads, queries, _ = query.shape
        self._mod = _over_places(score_mod, (0,))
        self._query = query
        self._key = key.repeat_interleave(heads // max(key.shape[1], 1), dim=1)
        self._scale = scale
        self._rows = mask.resolve((batch, heads), queries, key.shape[2], query.device)

    def read(self) -> _Form:
        """Determine the parameters of the function.

        Raises:
            RecordError: if the function has another form.
        """
        batch, heads, queries, _ = self._query.shape
        keys = self._key.shape[2]
        height = max(1, _ENTRIES // max(1, batch * heads * keys))
        pieces: list[Tensor] = []
        form: _Form | None = None
        for first in range(0, queries, height):
            rows = slice(first, min(first + height, queries))
            visible = self._rows.visible(rows, slice(0, keys))
            bias = torch.where(visible, self._modified(rows, 0.0), 0.0)
            _require_scores_to_count(bias)
            with torch.no_grad():
                form = form or self._found(rows, visible & bias.isfinite())
                self._compare(rows, visible, bias, form or _Form())
            pieces.append(bias)
        if not pieces:
            return _Form()
        bias = torch.cat(pieces, dim=-2).to(torch.promote_types(self._query.dtype, torch.float32))
        for axis in (0, 1):  # broadcast where all batch entries or heads are equal
            if torch.equal(bias, bias.narrow(axis, 0, 1).expand_as(bias)):
                bias = bias.narrow(axis, 0, 1)
        reduced = reduce_mask(bias, (batch, heads), queries, keys)
        return replace(form or _Form(), mask=reduced.mask)

    def _modified(self, rows: slice, scores: float | Tensor) -> Float[Tensor, "B H l S"]:
        batch, heads, _, _ = self._query.shape
        sizes = (batch, heads, rows.stop - rows.start, self._key.shape[2])
        device = self._query.device
        scores = torch.as_tensor(scores, dtype=torch.float64, device=device).expand(sizes)
        b, h, q, k = (torch.arange(size, device=device) for size in sizes)
        try:
            return self._mod(scores, b, h, q + rows.start, k).double()
        except RuntimeError as error:
            raise RecordError(
                f"score_mod of flex_attention can't be evaluated in float64: {error}"
            ) from error

    def _found(self, rows: slice, finite: Bool[Tensor, "B H l S"]) -> _Form | None:
        """Return factor and softcap, probed at one entry with a finite bias; None without one."""
        if not bool(finite.any()):
            return None
        place = tuple(finite.nonzero()[0].tolist())
        slope, limit = (
            float(self._modified(rows, at)[place] - self._modified(rows, -at)[place]) / 2
            for at in (1.0, _LARGE)
        )
        if limit > _LARGE * _ROUNDING:
            return _Form(_rounded(limit / _LARGE))
        if not 0 < slope < limit:
            return _Form()
        return _Form(_rounded(math.atanh(slope / limit) * limit), _rounded(limit))

    def _compare(self, rows: slice, visible: Tensor, bias: Tensor, form: _Form) -> None:
        """Verify the parameters at all scores of some rows."""
        scores = self._query[:, :, rows].double() @ self._key.double().mT * self._scale
        expected = form.factor * scores
        if form.softcap is not None:
            expected = form.softcap * torch.tanh(expected / form.softcap)
        bound = _ROUNDING * (expected.abs() + bias.abs())
        expected = expected + bias
        actual = self._modified(rows, scores)
        same = (actual == expected) | ((actual - expected).abs() <= bound)
        if not bool((same & (actual < math.inf) | ~visible).all()):
            raise RecordError(
                "score_mod of flex_attention is not of the form cap·tanh(a·score/cap) + bias, with "
                "numbers a and cap and a bias that no score enters, so its weights can't be "
                "recorded; put what hides keys into block_mask, and other changes of scores into "
                "query or key"
            )


def _require_scores_to_count(bias: Tensor) -> None:
    """Refuse a finite bias so large that scores are lost in rounding."""
    if bool((bias.isfinite() & (bias.abs() > _HIDING)).any()):
        raise RecordError(
            f"score_mod of flex_attention adds numbers beyond ±{_HIDING:.0e}, beside which scores "
            "are lost in rounding; hide keys by block_mask or -inf"
        )


def _rounded(number: float) -> float:
    """Round to nine digits, since the subtraction of two large numbers loses accuracy."""
    return float(f"{number:.9g}")
