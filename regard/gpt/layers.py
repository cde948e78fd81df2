"""The layers of a GPT: linear maps, embeddings, norms, self-attention, MLPs.

Between its matrix products a layer costs what reading and writing its tensors costs, and in
generation, one vector a sequence, a product costs what reading its matrix costs. So on a CPU each
operation is one pass of a native kernel over memory, with the rounding for the next product
included. Under a compiler, which fuses them itself, under tracing and function transforms, and on
other devices, torch computes them.

Axis letters: B batch, T tokens, S keys with those of a cache, E model dimension, H heads, G
key/value heads, D head dimension, I inputs and O outputs of a map. Every leading dimension is
optional.
"""

from __future__ import annotations

from math import pi, sqrt
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard._contexts import are_plain, is_transformed, must_dispatch, product_dtype
from regard._modules import has_hooks
from regard._shapes import Float, Int
from regard.attention import attention, attention_with_pattern
from regard.backends import native
from regard.gpt.config import GPTConfig
from regard.masks import Mask, causal, window
from regard.nn import KVCache, Rotation
from regard.pattern import Pattern

__all__ = [
    "MLP",
    "Attention",
    "Embedding",
    "GeGLU",
    "LayerNorm",
    "Linear",
    "RMSNorm",
    "SwiGLU",
    "add_and_normalize",
    "gelu",
    "linear",
    "may_use_kernel",
    "supports",
    "supports_added",
    "supports_parameter",
    "times",
]


class Linear(nn.Linear):
    """`nn.Linear`, computed by `linear`."""

    def reset_parameters(self) -> None:
        """Draw initial weights, except on the meta device."""
        if not self.weight.is_meta:  # where torch would load its compiler for nothing
            super().reset_parameters()

    def forward(self, input: Float[Tensor, "*b I"]) -> Float[Tensor, "*b O"]:  # noqa: A002 - nn.Linear's name
        """``input @ weightᵀ + bias``."""
        return linear(input, self.weight, self.bias)


class Embedding(nn.Embedding):
    """Token or position embeddings, which may also make the logits.

    Attributes:
        factor: what rows are multiplied by where they are read.
    """

    factor = 1.0

    def forward(self, input: Int[Tensor, "*b"]) -> Float[Tensor, "*b E"]:  # noqa: A002 - nn.Embedding's name
        """Return the rows of tokens or positions."""
        return times(super().forward(input), self.factor)

    def reset_parameters(self) -> None:
        """Draw initial weights, except on the meta device."""
        if not self.weight.is_meta:
            super().reset_parameters()

    def unembed(self, x: Float[Tensor, "*b E"]) -> Float[Tensor, "*b V"]:
        """Return the logits: ``x @ weightᵀ``."""
        return linear(x, self.weight)


def linear(
    x: Float[Tensor, "*b I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, "O"] | None = None
) -> Float[Tensor, "*b O"]:
    """``x @ weightᵀ + bias``; for a few vectors in inference mode, by the native kernel."""
    if may_use_kernel(x, weight, bias) and native.supports_matvec(x, weight, bias):
        return native.matvec(x, weight, bias)
    return F.linear(x, weight, bias)


def may_use_kernel(*arguments: Any) -> bool:
    """Return whether a native kernel may compute a product in torch's place.

    False outside inference mode, where gradients may be required, and under anything that must see
    or changes the product: a graph, a transform, a profiler, autocast, a tensor subclass.
    """
    if must_dispatch() or not torch.is_inference_mode_enabled():
        return False
    if torch.is_autocast_enabled("cpu"):
        return False
    return are_plain(*(argument for argument in arguments if argument is not None))


def times(rows: Tensor, factor: float) -> Tensor:
    """``rows · factor``; 1 costs nothing."""
    return rows if factor == 1 else rows * factor


class LayerNorm(nn.LayerNorm):
    """`nn.LayerNorm`, which under autocast on a CPU gives the dtype of matrix products."""

    def forward(self, input: Float[Tensor, "*b E"]) -> Float[Tensor, "*b E"]:  # noqa: A002 - nn.LayerNorm's name
        """Normalize each row."""
        results = _residual_norm(self, input, None)
        return super().forward(input) if results is None else results[1]


class RMSNorm(nn.RMSNorm):
    """`nn.RMSNorm`, likewise."""

    def forward(self, x: Float[Tensor, "*b E"]) -> Float[Tensor, "*b E"]:
        """Normalize each row."""
        results = _residual_norm(self, x, None)
        return super().forward(x) if results is None else results[1]


def add_and_normalize(
    norm: nn.Module, x: Float[Tensor, "*b E"], added: Float[Tensor, "*b E"] | None
) -> tuple[Float[Tensor, "*b E"], Float[Tensor, "*b E"]]:
    """``x + added`` and its norm, equal to one after the other to the bit.

    Args:
        norm: the norm; called as a module if it has hooks.
        x: the residual stream.
        added: the addition to it; None for none.
    """
    if added is not None and type(norm) in {LayerNorm, RMSNorm} and not has_hooks(norm):
        results = _residual_norm(cast("LayerNorm | RMSNorm", norm), x, added)
        if results is not None:
            return results
    x = x if added is None else x + added
    return x, cast("Tensor", norm(x))


def gelu(x: Float[Tensor, "*b E"]) -> Float[Tensor, "*b E"]:
    """GPT-2's GELU, the tanh form: ``x/2·(1 + tanh z)``, where ``z = √(2/π)·(x + 0.044715·x³)``."""
    if torch.compiler.is_compiling():  # one loop, in which a sigmoid costs half as much as a tanh
        return x * torch.sigmoid(sqrt(8 / pi) * (x + 0.044715 * x * x * x))
    if not is_transformed() and supports(x) and native.why_missing() is None:
        return native.gelu(x)
    return F.gelu(x, approximate="tanh")


def _residual_norm(
    norm: LayerNorm | RMSNorm, x: Tensor, added: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """Sum and norm by the kernel, or None where it does not support the tensors."""
    if is_transformed() or x.dtype != torch.float32 or not supports(x):
        return None
    dtype = product_dtype(x)
    if not supports_added(added, x, dtype):
        return None
    rms = isinstance(norm, RMSNorm)
    weight, bias = norm.weight, norm.bias if isinstance(norm, LayerNorm) else None
    for parameter in (weight, bias):
        if parameter is not None and parameter.shape != x.shape[-1:]:
            return None  # of other shapes, torch raises an error or normalizes several axes
    if not supports_parameter(weight) or not (bias is None or supports_parameter(bias)):
        return None
    if dtype not in native.DTYPES or norm.eps is None or native.why_missing() is not None:
        return None
    return native.residual_norm(x, added, weight, bias, epsilon=norm.eps, rms=rms, dtype=dtype)


def supports(x: Tensor) -> bool:
    """Return whether the kernels support a tensor."""
    return are_plain(x) and x.dtype in native.DTYPES and x.numel() > 0


def supports_added(added: Tensor | None, x: Tensor, dtype: torch.dtype) -> bool:
    """Return whether they support an addition to x: None, or a tensor in the dtype of products."""
    if added is None:
        return True
    return added.dtype == dtype and added.shape == x.shape and supports(added)


def supports_parameter(x: Tensor) -> bool:
    """Return whether they support a parameter: float32 and contiguous."""
    return are_plain(x) and x.dtype == torch.float32 and x.is_contiguous()


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
        self.scale, self.softcap = config.score_scale, config.score_softcap
        self.mask = self.mask_of(config, layer)
        self.c_attn: nn.Module = Linear(config.dim, sum(self.widths), bias=config.bias)
        self.c_proj: nn.Module = Linear(self.widths[0], config.dim, bias=config.bias)
        self.q_norm, self.k_norm = (
            nn.RMSNorm(config.head_dim, eps=config.norm_eps) if config.qk_norm else None
            for _ in range(2)
        )

    @staticmethod
    def mask_of(config: GPTConfig, layer: int) -> Mask:
        """Return the mask of a layer, by its window."""
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
        """Attend; append this layer's lazy pattern to `patterns`, if that is a list."""
        query, key, value = self.project(x, rotation)
        mask = self.mask if mask is None else self.mask & mask
        if cache is not None:
            key, value = cache.append(key, value)  # (B, G, S, D)
            mask = cache.hide_padding(mask, query.shape[-2], key.shape[-2])
        dropout = self.dropout if self.training else 0.0
        options: Any = {"mask": mask, "scale": self.scale, "softcap": self.softcap}
        if patterns is None:
            context = attention(query, key, value, dropout=dropout, **options)
        else:
            context, pattern = attention_with_pattern(query, key, value, dropout=dropout, **options)
            patterns.append(pattern)
        return cast("Tensor", self.c_proj(context.transpose(-3, -2).flatten(-2)))  # (B, T, E)


def _normed(norm: nn.RMSNorm, x: Tensor) -> Tensor:
    """Normalise in the precision of the gains, which under autocast is not that of x."""
    return cast("Tensor", norm(x.to(norm.weight.dtype))).to(x.dtype)


class MLP(nn.Module):
    """Feed-forward layer: expand, GELU, contract; each token by itself."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.c_fc: nn.Module = Linear(config.dim, config.hidden_dim, bias=config.bias)
        self.c_proj: nn.Module = Linear(config.hidden_dim, config.dim, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, T, E)`` to ``(B, T, E)``."""
        return cast("Tensor", self.c_proj(gelu(self.c_fc(x))))


class SwiGLU(nn.Module):
    """An MLP whose hidden channels are gated: silu(gate) · up, made by one matrix, gate first."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.c_fc: nn.Module = Linear(config.dim, 2 * config.hidden_dim, bias=config.bias)
        self.c_proj: nn.Module = Linear(config.hidden_dim, config.dim, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, T, E)`` to ``(B, T, E)``."""
        gate, up = self.c_fc(x).chunk(2, dim=-1)
        return cast("Tensor", self.c_proj(self.activation(gate) * up))

    @staticmethod
    def activation(gate: Tensor) -> Tensor:
        """Return the activated gate, which multiplies ``up``."""
        return F.silu(gate)


class GeGLU(SwiGLU):
    """The same with GPT-2's GELU of the gate."""

    @staticmethod
    def activation(gate: Tensor) -> Tensor:
        """Return the activated gate, which multiplies ``up``."""
        return gelu(gate.contiguous())
