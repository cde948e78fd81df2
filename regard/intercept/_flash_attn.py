"""Readers of calls to flash_attn (2.x) and flash_attn_interface (FlashAttention-3), for GPUs.

Each function has the name and signature of the one that it reads (Dao 2023, arXiv:2307.08691; Shah
et al. 2024, arXiv:2407.08608). Version 3 has no dropout and no ALiBi; its further options that
change scores are refused by name.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension; n sequences,
T tokens of all sequences.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.errors import RecordError
from regard.inputs import Scoring
from regard.intercept._call import Call
from regard.intercept._library_call import Band, LibraryCall, PackedSequences
from regard.masks import Mask, dense, padding

WindowSize = tuple[int, int]


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,  # noqa: FBT001, FBT002 - the package's signatures
    window_size: WindowSize = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,  # noqa: ARG001, FBT001, FBT002
    return_attn_probs: bool = False,  # noqa: ARG001, FBT001, FBT002
) -> LibraryCall:
    """Read ``flash_attn_func``: q ``(B, L, H, D)``, k and v ``(B, S, G, D)``."""
    mask = _band(window_size, causal=causal).mask(q.shape[1] + k.shape[1])
    scoring = _scoring(softmax_scale, softcap, mask, alibi=alibi_slopes)
    return _of_batch(q, k, v, scoring, dropout_p, "return_attn_probs")


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, *args: Any, **options: Any) -> LibraryCall:
    """Read ``flash_attn_kvpacked_func``: kv ``(B, S, 2, G, D)``."""
    key, value = kv.unbind(-3)
    return flash_attn_func(q, key, value, *args, **options)


def flash_attn_qkvpacked_func(qkv: Tensor, *args: Any, **options: Any) -> LibraryCall:
    """Read ``flash_attn_qkvpacked_func``: qkv ``(B, L, 3, H, D)``."""
    query, key, value = qkv.unbind(-3)
    return flash_attn_func(query, key, value, *args, **options)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,  # noqa: ARG001 - of the kernel's launch
    max_seqlen_k: int,  # noqa: ARG001
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,  # noqa: FBT001, FBT002 - the package's signatures
    window_size: WindowSize = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,  # noqa: ARG001, FBT001, FBT002
    return_attn_probs: bool = False,  # noqa: ARG001, FBT001, FBT002
    block_table: Tensor | None = None,
) -> LibraryCall:
    """Read ``flash_attn_varlen_func``: q ``(T, H, D)``, k and v ``(T, G, D)``, as one sequence."""
    starts_q, starts_k = cu_seqlens_q.long(), cu_seqlens_k.long()
    if block_table is not None:
        lengths = starts_k.diff().tolist()
        k, v = (_rows_of_pages(pages, block_table, lengths) for pages in (k, v))
    sequences = PackedSequences(
        query_start=starts_q[:-1],
        query_stop=starts_q[1:],
        key_start=starts_k[:-1],
        key_stop=starts_k[1:],
    )
    queries, keys = len(q), len(k)
    mask = sequences.mask(queries, keys, _band(window_size, causal=causal), at_end=True)
    bias = None
    if alibi_slopes is not None and (
        alibi_slopes.ndim > 1 or not sequences.are_documents(queries, keys)
    ):
        slopes = alibi_slopes if alibi_slopes.ndim > 1 else alibi_slopes[None]
        bias, alibi_slopes = sequences.alibi(slopes, queries, keys), None
    scoring = _scoring(softmax_scale, softcap, mask, alibi=alibi_slopes, bias=bias)
    query, key, value = (tensor.transpose(0, 1)[None] for tensor in (q, k, v))
    return LibraryCall(
        call=Call(query=query, key=key, value=value, scoring=scoring, dropout=dropout_p),
        to_heads=lambda context: context.transpose(0, 1)[None],
        from_heads=lambda context: context[0].transpose(0, 1),
        returns_more="return_attn_probs",
    )


def flash_attn_varlen_kvpacked_func(
    q: Tensor, kv: Tensor, *args: Any, **options: Any
) -> LibraryCall:
    """Read ``flash_attn_varlen_kvpacked_func``: kv ``(T, 2, G, D)``."""
    key, value = kv.unbind(-3)
    return flash_attn_varlen_func(q, key, value, *args, **options)


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, *args: Any, **options: Any
) -> LibraryCall:
    """Read ``flash_attn_varlen_qkvpacked_func``: qkv ``(T, 3, H, D)``."""
    query, key, value = qkv.unbind(-3)
    return flash_attn_varlen_func(
        query, key, value, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *args, **options
    )


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,  # noqa: ARG001 - the kernel has written it to the cache
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,  # noqa: ARG001 - comes with rotary_cos
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,  # noqa: FBT001, FBT002 - the package's signature
    window_size: WindowSize = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,  # noqa: ARG001, FBT001, FBT002
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,  # noqa: ARG001 - does not affect the result
    return_softmax_lse: bool = False,  # noqa: ARG001, FBT001, FBT002
) -> LibraryCall:
    """Read ``flash_attn_with_kvcache``, whose kernel has written k and v to the cache by now.

    q is ``(B, L, H, D)``, the caches ``(B, S, G, D)`` or pages of a block table. Only filled
    entries are keys; they are copied, since the kernel writes to the cache without a version count.
    """
    if rotary_cos is not None:
        raise RecordError(
            "flash_attn_with_kvcache was called with rotary_cos: the queries that its kernel "
            "rotates can't be seen; rotate query and key before the call"
        )
    if block_table is not None:
        pages = block_table.long().clamp(min=0)  # entries without a page may be anything
        k_cache, v_cache = (cache[pages].flatten(1, 2) for cache in (k_cache, v_cache))
    elif cache_batch_idx is not None:
        k_cache, v_cache = (cache[cache_batch_idx.long()] for cache in (k_cache, v_cache))
    batch, queries = q.shape[:2]
    new = 0 if k is None else k.shape[1]
    before = k_cache.shape[1] if cache_seqlens is None else cache_seqlens
    filled = torch.as_tensor(before, device=q.device).long().expand(batch) + new
    keys = int(filled.max()) if batch else 0
    band, length = _band(window_size, causal=causal), queries + k_cache.shape[1]
    first = torch.zeros_like(filled) if cache_leftpad is None else cache_leftpad.long()
    if bool(((filled == keys) & (first == 0)).all()):
        mask = band.mask(length)
    else:
        place = torch.arange(keys, device=q.device)
        keep = (place >= first[:, None]) & (place < filled[:, None])
        mask = padding(keep) & band.mask(length, offset=filled - queries)
    scoring = _scoring(softmax_scale, softcap, mask, alibi=alibi_slopes)
    key, value = (cache[:batch, :keys].clone() for cache in (k_cache, v_cache))
    return _of_batch(q, key, value, scoring, 0.0, "return_softmax_lse")


def _of_batch(
    q: Tensor, k: Tensor, v: Tensor, scoring: Scoring, dropout: float, returns_more: str
) -> LibraryCall:
    """Return the call of tensors ``(B, L, H, D)``."""
    query, key, value = (tensor.transpose(1, 2) for tensor in (q, k, v))
    return LibraryCall(
        call=Call(query=query, key=key, value=value, scoring=scoring, dropout=dropout),
        to_heads=lambda context: context.transpose(1, 2),
        from_heads=lambda context: context.transpose(1, 2),
        returns_more=returns_more,
    )


def _band(window_size: WindowSize, *, causal: bool) -> Band:
    left, right = window_size
    return Band(left=left, right=0 if causal else right)


def _scoring(
    scale: float | None,
    softcap: float,
    mask: Mask,
    *,
    alibi: Tensor | None,
    bias: Tensor | None = None,
) -> Scoring:
    if bias is not None:
        mask = mask & dense(bias)
    return Scoring(mask=mask, scale=scale, softcap=softcap if softcap > 0 else None, alibi=alibi)


def _rows_of_pages(pages: Tensor, block_table: Tensor, lengths: list[int]) -> Tensor:
    """Gather the keys of all sequences from pages ``(P, size, G, D)``, concatenated."""
    rows = [
        pages[own.long().clamp(min=0)].flatten(0, 1)[:length]
        for own, length in zip(block_table, lengths, strict=True)
    ]
    return torch.cat(rows)


def flash_attn_3_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,  # noqa: FBT001, FBT002 - the package's signature
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: WindowSize = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,  # noqa: ARG001 - does not affect the result
    pack_gqa: bool | None = None,  # noqa: ARG001, FBT001 - likewise
    deterministic: bool = False,  # noqa: ARG001, FBT001, FBT002 - likewise
    sm_margin: int = 0,  # noqa: ARG001 - likewise
    return_attn_probs: bool = False,  # noqa: ARG001, FBT001, FBT002 - likewise
) -> LibraryCall:
    """Read ``flash_attn_func``: q ``(B, L, H, D)``, k and v ``(B, S, G, D)``."""
    unknown = {
        "qv": qv is not None,
        "q_descale": q_descale is not None,
        "k_descale": k_descale is not None,
        "v_descale": v_descale is not None,
        "attention_chunk": attention_chunk != 0,
    }
    for name, given in unknown.items():
        if given:
            raise RecordError(
                f"flash_attn_interface.flash_attn_func was called with {name}, which regard does "
                "not read; call it without"
            )
    return flash_attn_func(
        q,
        k,
        v,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        softcap=softcap,
    )


def refused_flash_attn_3(name: str) -> Any:
    """Return a reader that refuses a function whose arguments are not supported."""

    def read(*args: Any, **options: Any) -> LibraryCall:  # noqa: ARG001 - none of them is read
        raise RecordError(
            f"a model called flash_attn_interface.{name}, of which regard reads flash_attn_func "
            "alone; give the model another attention, such as attn_implementation='sdpa'"
        )

    return read
