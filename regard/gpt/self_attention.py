"""The self-attention of a GPT: two linear maps around `regard.attention`.

Axis letters: B batch, T tokens, S keys with those of a cache, E model dimension, H heads, G
key/value heads, D head dimension. Every leading dimension is optional.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from regard._shapes import Float
from regard.attention import attention, attention_with_pattern
from regard.gpt._linear import Linear
from regard.gpt.config import GPTConfig
from regard.gpt.int8 import Int8Linear
from regard.masks import Mask, causal, window
from regard.nn import KVCache, Rotation
from regard.pattern import Pattern


class Attention(nn.Module):
    """Causal self-attention with H heads; one matrix makes all queries, keys and values.

    Its rows are those of the H queries, then of the G keys, then of the G values.
    """

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.heads = config.heads
        self.groups = config.group_count
        self.widths = [n * config.head_dim for n in (self.heads, self.groups, self.groups)]
        self.dropout = config.dropout
        self.mask = self.mask_of(config, layer)
        self.c_attn: Linear | Int8Linear = Linear(config.dim, sum(self.widths), bias=config.bias)
        self.c_proj: Linear | Int8Linear = Linear(config.dim, config.dim, bias=config.bias)
        self.q_norm, self.k_norm = (
            nn.RMSNorm(config.head_dim, eps=config.norm_eps) if config.qk_norm else None
            for _ in range(2)
        )

    @staticmethod
    def mask_of(config: GPTConfig, layer: int) -> Mask:
        """What the queries of a layer see."""
        size = config.layer_window(layer)
        return causal() if size is None else causal() & window(size)

    def project(
        self, x: Tensor, rotation: Rotation | None = None
    ) -> tuple[Float[Tensor, "*b H T D"], Float[Tensor, "*b G T D"], Float[Tensor, "*b G T D"]]:
        """Query, key and value for attention, with QK-norm and rotation where configured."""
        query, key, value = (
            part.unflatten(-1, (heads, -1)).transpose(-3, -2)  # (B, H or G, T, D)
            for part, heads in zip(
                self.c_attn(x).split(self.widths, dim=-1),  # (B, T, H·D or G·D) each
                (self.heads, self.groups, self.groups),
                strict=True,
            )
        )
        if self.q_norm is not None and self.k_norm is not None:
            query, key = _normed(self.q_norm, query), _normed(self.k_norm, key)
        if rotation is not None:
            query, key = rotation(query), rotation(key)
        return query, key, value

    def forward(
        self,
        x: Tensor,
        patterns: list[Pattern] | None = None,
        *,
        rotation: Rotation | None = None,
        cache: KVCache | None = None,
        mask: Mask | None = None,
    ) -> Tensor:
        """Attend; where `patterns` is a list, this layer's lazy pattern is appended to it."""
        query, key, value = self.project(x, rotation)
        mask = self.mask if mask is None else self.mask & mask
        if cache is not None:
            key, value = cache.append(key, value)  # (B, G, S, D)
            mask = cache.hide_padding(mask, query.shape[-2], key.shape[-2])
        dropout = self.dropout if self.training else 0.0
        if patterns is None:
            context = attention(query, key, value, mask=mask, dropout=dropout)
        else:
            context, pattern = attention_with_pattern(query, key, value, mask=mask, dropout=dropout)
            patterns.append(pattern)
        return cast("Tensor", self.c_proj(context.transpose(-3, -2).flatten(-2)))  # (B, T, E)


def _normed(norm: nn.RMSNorm, x: Tensor) -> Tensor:
    """Normalise in the precision of the gains, which under autocast is not that of x."""
    return cast("Tensor", norm(x.to(norm.weight.dtype))).to(x.dtype)
