"""What a block computes of each token by itself: the feed-forward layers.

Axis letters: B batch, T tokens, E model dimension.
"""

from __future__ import annotations

from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from regard.gpt._linear import Linear
from regard.gpt._pointwise import gelu
from regard.gpt.config import GPTConfig
from regard.gpt.int8 import Int8Linear


class MLP(nn.Module):
    """Feed-forward layer: expand, GELU, contract; each token by itself."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.c_fc: Linear | Int8Linear = Linear(config.dim, config.hidden_dim, bias=config.bias)
        self.c_proj: Linear | Int8Linear = Linear(config.hidden_dim, config.dim, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, T, E)`` to ``(B, T, E)``."""
        return cast("Tensor", self.c_proj(gelu(self.c_fc(x))))


class SwiGLU(nn.Module):
    """An MLP whose hidden channels are gated: silu(gate) · up, made by one matrix, gate first."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.c_fc: Linear | Int8Linear = Linear(config.dim, 2 * config.hidden_dim, bias=config.bias)
        self.c_proj: Linear | Int8Linear = Linear(config.hidden_dim, config.dim, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, T, E)`` to ``(B, T, E)``."""
        gate, up = self.c_fc(x).chunk(2, dim=-1)
        return cast("Tensor", self.c_proj(F.silu(gate) * up))
