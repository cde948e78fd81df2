"""Drop-in replacement for torch's scaled_dot_product_attention."""

from __future__ import annotations

import torch
from torch import Tensor

from regard._arguments import refuse_nested
from regard._contexts import to_autocast_dtype
from regard._shapes import Float, Shaped
from regard._tensors import broadcast_shapes
from regard.attention import attention
from regard.masks import Mask, causal, dense

__all__ = ["scaled_dot_product_attention"]


def scaled_dot_product_attention(
    query: Float[Tensor, "*b L D"],
    key: Float[Tensor, "*k S D"],
    value: Float[Tensor, "*v S Dv"],
    attn_mask: Shaped[Tensor, "..."] | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Float[Tensor, "*o L Dv"]:
    """Replace ``torch.nn.functional.scaled_dot_product_attention``.

    The arguments have the same meaning as there, which differs from `attention` in two points:
    ``is_causal`` aligns queries and keys at the top left (query 0 sees only key 0, for any L and
    S), and leading dimensions broadcast, heads included. As in `attention`, a NaN affects the rows
    that see it and, except on CUDA, no others; torch's kernels lose some and spread others. Under
    autocast, query, key and value are converted as in torch's call, while `attention` computes in
    the dtype of its arguments.

    Args:
        query: ``(..., H, L, D)``.
        key: ``(..., G, S, D)``.
        value: ``(..., G, S, Dv)``.
        attn_mask: broadcastable to ``(..., H, L, S)``: boolean, True if the key may be seen, or
            floating point, added to the scaled scores; or a `CausalBias` of
            ``torch.nn.attention.bias``.
        dropout_p: probability of zeroing a weight; applied outside training too.
        is_causal: top-left causal mask; with attn_mask, a key must be visible in both.
        scale: factor on the scores; None means 1/√D.
        enable_gqa: allow H to be a multiple of the number of key and value heads.

    Returns:
        context ``(..., H, L, Dv)``.

    Raises:
        ValueError: for inconsistent shapes, and for a `CausalBias` together with is_causal.

    Example:
        >>> import regard, torch
        >>> x = torch.randn(2, 3, 5, 7)
        >>> regard.scaled_dot_product_attention(x, x, x, is_causal=True).shape
        torch.Size([2, 3, 5, 7])
    """
    query, key, value = (to_autocast_dtype(tensor) for tensor in (query, key, value))
    query, key, value = broadcast(query, key, value, grouped=enable_gqa)
    mask: Mask | None = causal(offset=0) if is_causal else None
    if attn_mask is not None:
        other = causal_bias(attn_mask, query.shape[-2], key.shape[-2], is_causal=is_causal)
        other = dense(attn_mask) if other is None else other
        mask = other if mask is None else mask & other
    return attention(query, key, value, mask=mask, scale=scale, dropout=dropout_p)


def causal_bias(attn_mask: Tensor, queries: int, keys: int, *, is_causal: bool) -> Mask | None:
    """Convert a `CausalBias`, whose memory is uninitialized, to a mask; None for other tensors.

    Raises:
        ValueError: together with is_causal, as in torch, and for a lower-right bias that was made
            for other numbers of queries and keys.
    """
    if type(attn_mask) is torch.Tensor:
        return None
    from torch.nn.attention.bias import CausalBias, CausalVariant

    if not isinstance(attn_mask, CausalBias):
        return None
    if is_causal:
        raise ValueError("attn_mask is a CausalBias, which excludes is_causal=True; pass one")
    if attn_mask.variant == CausalVariant.UPPER_LEFT:
        return causal(offset=0)
    ahead = attn_mask.seq_len_kv - attn_mask.seq_len_q
    if ahead != keys - queries:
        raise ValueError(
            f"attn_mask is causal_lower_right({attn_mask.seq_len_q}, {attn_mask.seq_len_kv}), but "
            f"there are {queries} queries and {keys} keys"
        )
    return causal(offset=ahead)


def broadcast(
    query: Tensor, key: Tensor, value: Tensor, *, grouped: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Broadcast the leading dimensions, except the heads if they are grouped."""
    tensors = (query, key, value)
    for name, tensor in zip(("query", "key", "value"), tensors, strict=True):
        refuse_nested(tensor, name)
    kept = 3 if grouped and min(query.ndim, key.ndim, value.ndim) > 2 else 2
    if not query.shape[:-kept] == key.shape[:-kept] == value.shape[:-kept]:
        try:
            leading = broadcast_shapes(*(t.shape[:-kept] for t in tensors))
        except ValueError as error:
            shapes = ", ".join(str(tuple(t.shape)) for t in tensors)
            cure = "" if grouped else "; enable_gqa=True lets query heads share key heads"
            raise ValueError(f"query, key and value do not broadcast: {shapes}{cure}") from error
        query, key, value = (t.expand(*leading, *t.shape[-kept:]) for t in tensors)
    if kept == 3 and key.shape[-3] != value.shape[-3]:  # differ: repeat both for each query head
        key, value = (_for_each_head(t, query.shape[-3]) for t in (key, value))
    return query, key, value


def _for_each_head(tensor: Tensor, heads: int) -> Tensor:
    groups = tensor.shape[-3]
    if groups == 0 or heads % groups:
        raise ValueError(
            f"the query's {heads} heads are not a multiple of {groups} key or value heads"
        )
    return tensor.repeat_interleave(heads // groups, dim=-3)
