"""Multi-head attention, with optional cross-attention and shared key heads.

Axes: B batch, T positions, S positions of the source, E model dimension, H query heads, G key/value
heads, D = E/H head dimension.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from regard._shapes import Float, Shaped
from regard.attention import attention, attention_with_pattern
from regard.inputs import check_mask
from regard.masks import Mask
from regard.nn.cache import KVCache, rollback_on_error
from regard.nn.head import Head
from regard.pattern import Pattern

__all__ = ["MultiHeadAttention", "merge_heads", "split_heads"]


def split_heads(x: Shaped[Tensor, "*b T E"], heads: int) -> Shaped[Tensor, "*b H T D"]:
    """Split channels among heads: ``(..., T, E)`` to ``(..., H, T, E/H)``, a view.

    Raises:
        ValueError: if heads does not divide E.

    Example:
        >>> import torch
        >>> from regard.nn import split_heads
        >>> split_heads(torch.arange(6).reshape(1, 6), 2)
        tensor([[[0, 1, 2]],
        <BLANKLINE>
                [[3, 4, 5]]])
    """
    if heads < 1 or x.shape[-1] % heads:
        raise ValueError(f"heads is {heads}, which does not divide {x.shape[-1]} channels")
    return x.unflatten(-1, (heads, -1)).transpose(-3, -2)


def merge_heads(x: Shaped[Tensor, "*b H T D"]) -> Shaped[Tensor, "*b T E"]:
    """Concatenate the heads' channels: ``(..., H, T, D)`` to ``(..., T, H·D)``.

    Example:
        >>> import torch
        >>> from regard.nn import merge_heads, split_heads
        >>> x = torch.randn(2, 5, 6)
        >>> torch.equal(merge_heads(split_heads(x, 3)), x)
        True
    """
    return x.transpose(-3, -2).flatten(-2)


class MultiHeadAttention(nn.Module):
    """Multi-head attention: self or cross, masked or not, with or without shared key heads.

    Args:
        dim: model dimension E, of input and output.
        heads: number of query heads H, a divisor of dim.
        groups: number of key/value heads G, a divisor of heads; None means H (Ainslie et al. 2023,
            arXiv:2305.13245).
        source_dim: channels of the source in cross-attention; None means dim.
        bias: add a bias to the four linear maps.
        mask: the keys that each query may see, as for `regard.attention`; None for all.
        dropout: probability of zeroing a weight, in training only.

    Attributes:
        query, key, value, output: the four linear maps. Rows h·D … (h+1)·D of ``value.weight`` and
            the same columns of ``output.weight`` form one head's map E → D → E.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2.

    Example:
        >>> import regard, torch
        >>> from regard.nn import MultiHeadAttention
        >>> layer = MultiHeadAttention(12, 3, mask=regard.causal())
        >>> output, pattern = layer.with_pattern(torch.randn(2, 5, 12))
        >>> output.shape, pattern.shape
        (torch.Size([2, 5, 12]), torch.Size([2, 3, 5, 5]))
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        groups: int | None = None,
        source_dim: int | None = None,
        bias: bool = False,
        mask: Mask | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        groups = heads if groups is None else groups
        if heads < 1 or dim % heads:
            raise ValueError(f"heads={heads} must divide dim={dim}")
        if groups < 1 or heads % groups:
            raise ValueError(f"groups={groups} must divide heads={heads}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), but is {dropout}")
        check_mask(mask)
        self.heads, self.groups = heads, groups
        self.mask = mask
        self.dropout = dropout
        source_dim = dim if source_dim is None else source_dim
        narrow = dim // heads * groups
        self.query = nn.Linear(dim, dim, bias=bias)
        self.key = nn.Linear(source_dim, narrow, bias=bias)
        self.value = nn.Linear(source_dim, narrow, bias=bias)
        self.output = nn.Linear(dim, dim, bias=bias)

    def head(self, index: int) -> Head:
        """Extract one head as a separate layer with copies of its matrices.

        The head computes its D channels of the output matrix's input. A `Head` has no bias, so
        layers with biases are not supported.

        Args:
            index: index of the query head, 0 … H−1.

        Raises:
            IndexError: if there is no such head.
            ValueError: if the layer has biases, or its source has another width than x.
        """
        if not 0 <= index < self.heads:
            raise IndexError(f"index is {index}, but there are heads 0 to {self.heads - 1}")
        if self.query.bias is not None or self.query.in_features != self.key.in_features:
            raise ValueError(
                "a Head has no bias and one input width, so it can't be extracted from this layer; "
                "make the layer with bias=False and source_dim=dim"
            )
        dim = self.query.out_features // self.heads
        shared = index // (self.heads // self.groups)
        query, key, value = (
            layer.weight[at * dim : (at + 1) * dim].T
            for layer, at in ((self.query, index), (self.key, shared), (self.value, shared))
        )
        return Head.of(query, key, value, mask=self.mask, dropout=self.dropout)

    def forward(
        self,
        x: Float[Tensor, "*b T E"],
        source: Float[Tensor, "*b S C"] | None = None,
        *,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "*b T E"]:
        """Attend from x to source, which is x itself by default.

        Args:
            x: ``(T, E)`` or ``(B, T, E)``: input of the queries.
            source: ``(S, C)`` or ``(B, S, C)``: input of keys and values, C = source_dim.
            cache: keys and values of the positions before x, which x attends to as well; those of x
                are appended. Only for self-attention with the mask `regard.causal` or
                `regard.window`: with any other, later positions could change earlier results.

        Raises:
            ValueError: if the number of channels is not that of the layer; with a cache, if there
                is a source or another mask, the mask sees more than the cache's window, or the
                cache is full.
        """
        dropout = self.dropout if self.training else 0.0
        with rollback_on_error(cache):
            query, key, value, mask = self._project(x, source, cache)
            context = attention(query, key, value, mask=mask, dropout=dropout)  # (B, H, T, D)
            return self.output(merge_heads(context))

    def with_pattern(
        self,
        x: Float[Tensor, "*b T E"],
        source: Float[Tensor, "*b S C"] | None = None,
        *,
        cache: KVCache | None = None,
    ) -> tuple[Float[Tensor, "*b T E"], Pattern | Any]:  # as attention_with_pattern
        """Compute `forward`, and return the weights ``(B, H, T, S)`` as a lazy `Pattern` too.

        Forward hooks of the module do not run, since this is not a call of the module.
        """
        dropout = self.dropout if self.training else 0.0
        with rollback_on_error(cache):
            query, key, value, mask = self._project(x, source, cache)
            context, pattern = attention_with_pattern(query, key, value, mask=mask, dropout=dropout)
            return self.output(merge_heads(context)), pattern

    def _project(
        self, x: Tensor, source: Tensor | None, cache: KVCache | None
    ) -> tuple[Tensor, Tensor, Tensor, Mask | None]:
        """Compute query ``(B, H, T, D)``, key and value ``(B, G, S, D)``, cached ones included."""
        if cache is not None:
            if source is not None:
                raise ValueError(
                    "a cache supports only self-attention, but a source was given; pass x alone"
                )
            _check_mask_of_cache(self.mask, cache)
        source = x if source is None else source
        for name, tensor, layer in (("x", x, self.query), ("source", source, self.key)):
            if tensor.ndim < 2 or tensor.shape[-1] != layer.in_features:
                raise ValueError(
                    f"{name} has shape {tuple(tensor.shape)}, but this layer takes "
                    f"(T, {layer.in_features}) or (B, T, {layer.in_features})"
                )
        query = split_heads(self.query(x), self.heads)  # (B, H, T, D)
        key = split_heads(self.key(source), self.groups)  # (B, G, S, D)
        value = split_heads(self.value(source), self.groups)  # (B, G, S, D)
        mask = self.mask
        if cache is not None and mask is not None:
            key, value = cache.append(key, value)
            mask = cache.hide_padding(mask, query.shape[-2], key.shape[-2])
        return query, key, value, mask

    def extra_repr(self) -> str:
        """Describe the options that the linear maps do not show."""
        shared = "" if self.groups == self.heads else f", groups={self.groups}"
        return f"heads={self.heads}{shared}, mask={self.mask}, dropout={self.dropout}"


def _check_mask_of_cache(mask: Mask | None, cache: KVCache) -> None:
    """Reject masks with which a sequence in parts would give other results than at once."""
    start, stop, offset = (None, None, None) if mask is None else mask.affine or (None, None, None)
    if stop is None or stop > 1 or offset is not None:
        raise ValueError(
            f"a cache supports only layers with mask=regard.causal() or regard.window(size), but "
            f"this layer has mask={mask!r}"
        )
    if cache.window is not None and (start is None or 1 - start > cache.window):
        raise ValueError(
            f"the cache has window={cache.window}, but the layer's mask is {mask!r}, which sees "
            "more positions; make the cache with the mask's window, or without a window"
        )
