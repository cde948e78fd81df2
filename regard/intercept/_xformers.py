"""Reads calls of ``xformers.ops.memory_efficient_attention``, whose kernels need a GPU.

Axes: B batch, H query heads, G groups of them, L queries, S keys, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.errors import RecordError
from regard.inputs import Scoring
from regard.intercept._call import Call
from regard.intercept._library_call import Band, LibraryCall, PackedSequences
from regard.intercept._mask_reduction import ReducedMask, reduce_mask
from regard.masks import Mask, causal

_CAUSAL = Band(right=0)


def memory_efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: Any = None,  # noqa: ARG001 - does not affect the result
    output_dtype: torch.dtype | None = None,  # noqa: ARG001 - likewise
) -> LibraryCall:
    """Read a call of tensors ``(B, L, H, D)``, ``(B, L, D)`` or ``(B, L, G, H/G, D)``.

    Raises:
        RecordError: for quantised keys, and for an unsupported attn_bias.
    """
    if key.dtype != query.dtype:
        raise RecordError(
            f"memory_efficient_attention was called with keys of {key.dtype}, whose numbers are "
            "known to its kernel alone; give key and value in the query's dtype"
        )
    shape = query.shape
    query = _heads(query)
    key, value = _shared_heads(key, value)
    reduced = _mask(attn_bias, query, key, legacy=len(shape) == 3)
    if reduced.uniform is not None:
        query = query.masked_fill(reduced.uniform[..., None], 0)
    scoring = Scoring(mask=reduced.mask, scale=scale)

    def from_heads(context: Tensor) -> Tensor:
        return context.transpose(1, 2).reshape(*shape[:-1], context.shape[-1])

    return LibraryCall(
        call=Call(query=query, key=key, value=value, scoring=scoring, dropout=p),
        to_heads=_heads,
        from_heads=from_heads,
        returns_more="",
    )


def _heads(tensor: Tensor) -> Tensor:
    """Convert a tensor of the library to ``(B, H, L, D)``."""
    if tensor.ndim == 3:
        return tensor[:, None]
    return tensor.flatten(2, -2).transpose(1, 2)


def _shared_heads(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keep one head per group if the group was made by `expand`."""
    once = key.ndim == 5 and key.stride(3) == 0 and value.stride(3) == 0
    return _heads(key[..., :1, :] if once else key), _heads(value[..., :1, :] if once else value)


def _mask(attn_bias: Any, query: Tensor, key: Tensor, *, legacy: bool) -> ReducedMask:
    """Convert an attn_bias to a mask: None, an additive tensor, or one of the library's classes."""
    if attn_bias is None:
        return ReducedMask(Mask())
    leading, queries, keys = tuple(query.shape[:-2]), query.shape[-2], key.shape[-2]
    name = type(attn_bias).__name__
    if isinstance(attn_bias, Tensor) and not hasattr(attn_bias, "materialize"):
        if attn_bias.ndim == 5:
            attn_bias = attn_bias.flatten(1, 2)
        elif legacy:
            attn_bias = attn_bias[:, None]
        return reduce_mask(attn_bias, leading, queries, keys)
    if name in _BANDS:
        return ReducedMask(_BANDS[name](attn_bias).mask(queries + keys))
    if name == "LowerTriangularMask":
        return ReducedMask(causal(offset=0))
    if name in _BLOCKS:
        band, at_end = _BLOCKS[name]
        sequences = _sequences(attn_bias, query.device)
        return ReducedMask(sequences.mask(queries, keys, band(attn_bias), at_end=at_end))
    if name.startswith("Paged") or not hasattr(attn_bias, "materialize"):
        raise RecordError(
            f"attn_bias of memory_efficient_attention is a {name}, which is not recorded; known "
            f"are tensors, LowerTriangularMask, {', '.join((*_BANDS, *_BLOCKS))} and kinds that "
            "materialize a matrix of all queries and keys; gather the keys of pages before the call"
        )
    return reduce_mask(  # its own definition
        attn_bias.materialize((*leading, queries, keys), dtype=torch.float32, device=query.device),
        leading,
        queries,
        keys,
    )


def _sequences(attn_bias: Any, device: torch.device) -> PackedSequences:
    bounds = (
        torch.tensor(list(part.intervals()), dtype=torch.int64, device=device).reshape(-1, 2)
        for part in (attn_bias.q_seqinfo, attn_bias.k_seqinfo)
    )
    queries, keys = bounds
    return PackedSequences(
        query_start=queries[:, 0],
        query_stop=queries[:, 1],
        key_start=keys[:, 0],
        key_stop=keys[:, 1],
    )


def _everything(attn_bias: Any) -> Band:  # noqa: ARG001 - one of the table's functions
    return Band()


def _causal(attn_bias: Any) -> Band:  # noqa: ARG001 - likewise
    return _CAUSAL


def _causal_window(attn_bias: Any) -> Band:
    return Band(left=attn_bias._window_size - 1, right=0)  # noqa: SLF001 - its only name


def _window(attn_bias: Any) -> Band:
    return Band(left=attn_bias.window_left, right=attn_bias.window_right)


_BANDS: dict[str, Callable[[Any], Band]] = {
    "LowerTriangularFromBottomRightMask": _causal,
    "LowerTriangularFromBottomRightLocalAttentionMask": _causal_window,
    "LocalAttentionFromBottomRightMask": _window,
}
_BLOCKS: dict[str, tuple[Callable[[Any], Band], bool]] = {
    "BlockDiagonalMask": (_everything, False),
    "BlockDiagonalPaddedKeysMask": (_everything, False),
    "BlockDiagonalGappyKeysMask": (_everything, False),
    "BlockDiagonalCausalMask": (_causal, False),
    "BlockDiagonalCausalLocalAttentionMask": (_causal_window, False),
    "BlockDiagonalCausalFromBottomRightMask": (_causal, True),
    "BlockDiagonalCausalLocalAttentionFromBottomRightMask": (_causal_window, True),
    "BlockDiagonalCausalWithOffsetPaddedKeysMask": (_causal, True),
    "BlockDiagonalCausalWithOffsetGappyKeysMask": (_causal, True),
    "BlockDiagonalCausalLocalAttentionPaddedKeysMask": (_causal_window, True),
    "BlockDiagonalLocalAttentionPaddedKeysMask": (_window, True),
}
"""The band of each class, and whether the last query is aligned with the last key."""
