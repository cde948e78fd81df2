"""torch's own call, to the letter, on this package's attention."""

from __future__ import annotations

import torch
from torch import Tensor

from regard._arguments import refuse_nested
from regard._contexts import to_autocast_dtype
from regard._shapes import Float, Shaped
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
    """Stand in for ``torch.nn.functional.scaled_dot_product_attention``.

    The arguments mean what they mean there, which differs from `attention` in two points:
    ``is_causal`` lines queries and keys up at the top left (query 0 sees key 0 alone, whatever L
    and S are), and leading dimensions broadcast, heads included. As in `attention`, a NaN comes out
    where it is visible and, but for CUDA, nowhere else; torch's kernels lose some and spread
    others. Under autocast, query, key and value are converted as for torch's call, while
    `attention` computes in the dtype of its arguments.

    Args:
        query: ``(..., H, L, D)``.
        key: ``(..., G, S, D)``.
        value: ``(..., G, S, Dv)``.
        attn_mask: broadcastable to ``(..., H, L, S)``; True where a key may be seen, or a number
            to be added to the scaled scores. Or a `CausalBias` of ``torch.nn.attention.bias``.
        dropout_p: probability of zeroing a weight; applied whenever it is above 0.
        is_causal: top-left causal mask; with attn_mask, a key must be visible in both.
        scale: factor on the scores; None is 1/√D.
        enable_gqa: let H be a multiple of the heads of key and of value.

    Returns:
        context ``(..., H, L, Dv)``.

    Raises:
        ValueError: for shapes that do not fit together, and for a `CausalBias` with is_causal.

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
    """Make a mask of a `CausalBias`, whose memory is unwritten; None for any other attn_mask.

    Raises:
        ValueError: beside is_causal, as torch does, and for one that lines up at the lower right of
            a matrix of another size.
    """
    if type(attn_mask) is torch.Tensor:
        return None
    from torch.nn.attention.bias import CausalBias, CausalVariant

    if not isinstance(attn_mask, CausalBias):
        return None
    if is_causal:
        raise ValueError("attn_mask is a CausalBias, beside which is_causal=True may not be given")
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
    """Spread the leading dimensions over each other; grouped heads keep theirs."""
    tensors = (query, key, value)
    for name, tensor in zip(("query", "key", "value"), tensors, strict=True):
        refuse_nested(tensor, name)
    kept = 3 if grouped and min(t.ndim for t in tensors) > 2 else 2
    if not query.shape[:-kept] == key.shape[:-kept] == value.shape[:-kept]:
        try:
            leading = torch.broadcast_shapes(*(t.shape[:-kept] for t in tensors))
        except RuntimeError as error:
            shapes = ", ".join(str(tuple(t.shape)) for t in tensors)
            cure = "" if grouped else "; enable_gqa=True lets query heads share key heads"
            raise ValueError(f"query, key and value do not broadcast: {shapes}{cure}") from error
        query, key, value = (t.expand(*leading, *t.shape[-kept:]) for t in tensors)
    if kept == 3 and key.shape[-3] != value.shape[-3]:  # groups of their own: one for each head
        key, value = (_for_each_head(t, query.shape[-3]) for t in (key, value))
    return query, key, value


def _for_each_head(tensor: Tensor, heads: int) -> Tensor:
    groups = tensor.shape[-3]
    if groups == 0 or heads % groups:
        raise ValueError(
            f"the query's {heads} heads are not a multiple of {groups} key or value heads"
        )
    return tensor.repeat_interleave(heads // groups, dim=-3)
