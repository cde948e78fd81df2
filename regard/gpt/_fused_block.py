"""A block as one node of the autograd graph.

What a block computes between its matrix products is short, and so are the products of a small
model: with a node for each operation, an update of one spends more time in autograd and in the
dispatcher than in them. Here the order of a block's operations is written out forward and backward,
with the products by torch and the rest by the kernels. Each operation rounds where the modules
round, in the same order.

Axis letters: B batch, T tokens, E model dimension, H heads, G key/value heads, D head dimension, F
hidden channels of the MLP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.overrides import has_torch_function

from regard._contexts import is_transformed
from regard._shapes import Float
from regard.backends import native
from regard.gpt._linear import Linear
from regard.gpt._pointwise import LayerNorm, RMSNorm, has_hooks, is_plain, is_plain_parameter
from regard.gpt.mlp import MLP
from regard.mask import Mask

if TYPE_CHECKING:
    from regard.gpt.model import Block


class BlockOptions(NamedTuple):
    """What a block computes with beside its tensors."""

    heads: int
    """H."""
    groups: int
    """G."""
    mask: Mask
    """Affine."""
    rms: bool
    """Whether the norms are RMS norms, else layer norms."""
    epsilon: float
    dtype: torch.dtype
    """Of the matrix products, one of the kernels."""


class BlockWeights(NamedTuple):
    """The parameters of a block, float32 and contiguous; biases may be missing."""

    ln_1: Float[Tensor, "E"]
    ln_1_bias: Float[Tensor, "E"] | None
    attention: Float[Tensor, "(H+2G)·D E"]
    attention_bias: Float[Tensor, "(H+2G)·D"] | None
    context: Float[Tensor, "E H·D"]
    context_bias: Float[Tensor, "E"] | None
    ln_2: Float[Tensor, "E"]
    ln_2_bias: Float[Tensor, "E"] | None
    expand: Float[Tensor, "F E"]
    expand_bias: Float[Tensor, "F"] | None
    contract: Float[Tensor, "E F"]
    contract_bias: Float[Tensor, "E"] | None


def run_fused(
    block: Block, x: Float[Tensor, "*b T E"], added: Float[Tensor, "*b T E"] | None
) -> tuple[Float[Tensor, "B T E"], Float[Tensor, "B T E"]] | None:
    """Run a block on ``x + added``, or give None where that needs its modules.

    Args:
        block: whose attention is no other class's.
        x: the residual stream.
        added: what is added to it; None: nothing.

    Returns:
        The stream, and what the MLP adds to it.
    """
    if not torch.is_grad_enabled() or is_transformed() or has_torch_function((x,)):
        return None
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
    if x.ndim != 3 or x.dtype != torch.float32 or not is_plain(x):
        return None
    if added is not None and not (
        added.dtype == dtype and added.shape == x.shape and is_plain(added)
    ):
        return None
    options = _options(block, dtype)
    if options is None or native.why_missing() is not None:
        return None
    weights = _weights(block)
    if not all(weight is None or is_plain_parameter(weight) for weight in weights):
        return None
    apply: Any = _FusedBlock.apply  # whose type is unknown
    stream, out = apply(x, added, options, *weights)
    return stream, out


def _options(block: Block, dtype: torch.dtype) -> BlockOptions | None:
    """What it computes with, or None where that is more than is written out here."""
    attn, drop = block.attn, block.drop
    mlp: Any = block.mlp
    norm, maps = type(block.ln_1), (attn.c_attn, attn.c_proj, mlp.c_fc, mlp.c_proj)
    if norm not in {LayerNorm, RMSNorm} or type(block.ln_2) is not norm or type(mlp) is not MLP:
        return None
    if any(type(linear) is not Linear for linear in maps) or type(drop) is not nn.Dropout:
        return None
    if any(map(has_hooks, (block.ln_1, attn, block.ln_2, mlp, drop, *maps))):
        return None
    if attn.q_norm is not None or "project" in vars(attn):
        return None
    if (attn.training and attn.dropout) or (block.training and drop.p):
        return None
    epsilon, wide = (
        cast("float | None", block.ln_1.eps),
        attn.widths[0] // attn.heads > native.WIDEST,
    )
    if wide or epsilon is None or block.ln_2.eps != epsilon or attn.mask.affine is None:
        return None
    return BlockOptions(attn.heads, attn.groups, attn.mask, norm is RMSNorm, epsilon, dtype)


def _weights(block: Block) -> BlockWeights:
    attn, mlp = block.attn, block.mlp
    modules = (block.ln_1, attn.c_attn, attn.c_proj, block.ln_2, mlp.c_fc, mlp.c_proj)
    weights: list[Any] = [
        getattr(module, name, None) for module in modules for name in ("weight", "bias")
    ]
    return BlockWeights(*weights)


class _FusedBlock(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, added: Tensor | None, options: BlockOptions, *tensors: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        weights = BlockWeights(*tensors)  # type: ignore[arg-type] # those of `fused_block`
        norm: Any = {"epsilon": options.epsilon, "rms": options.rms, "dtype": options.dtype}
        batch, tokens, width = x.shape
        matrices = [
            matrix.to(options.dtype)
            for matrix in (weights.attention, weights.context, weights.expand, weights.contract)
        ]
        attention, output, expand, contract = matrices
        x, added = x.contiguous(), None if added is None else added.contiguous()
        stream_1, normed_1, moments_1 = native.compute_residual_norm(
            x, added, weights.ln_1, weights.ln_1_bias, **norm
        )
        rows = normed_1.view(-1, width)  # (B·T, E)
        projected = _linear(rows, attention, weights.attention_bias).view(batch, tokens, -1)
        context, logsumexp = native.self_attention(
            projected, options.heads, options.groups, options.mask
        )
        attended = _linear(context.view(-1, context.shape[-1]), output, weights.context_bias)
        stream_2, normed_2, moments_2 = native.compute_residual_norm(
            stream_1, attended.view_as(stream_1), weights.ln_2, weights.ln_2_bias, **norm
        )
        hidden = _linear(normed_2.view(-1, width), expand, weights.expand_bias)
        activated = native.compute_gelu(hidden)
        out = _linear(activated, contract, weights.contract_bias).view_as(stream_2)
        ctx.save_for_backward(
            *(stream_1, moments_1, normed_1, projected, context, logsumexp),
            *(stream_2, moments_2, normed_2, hidden, activated),
            *(weights.ln_1, weights.ln_2, *matrices),
        )
        ctx.options, ctx.is_added = options, added is not None
        return stream_2, out

    @staticmethod
    @native.first_derivative
    def backward(ctx: Any, stream_gradient: Tensor, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # Contiguous, as they were saved: hooks on saved tensors need not keep to that.
        saved = [tensor.contiguous() for tensor in ctx.saved_tensors]
        stream_1, moments_1, normed_1, projected, context, logsumexp, *rest = saved
        stream_2, moments_2, normed_2, hidden, activated, *weights = rest
        ln_1, ln_2, attention, output, expand, contract = weights
        options: BlockOptions = ctx.options
        width = stream_1.shape[-1]
        needs = ctx.needs_input_grad  # of the weights and biases from 3 on
        needs_ln_1, needs_attention, needs_context, needs_ln_2, needs_expand, needs_contract = (
            needs[i : i + 2] for i in range(3, len(needs), 2)
        )

        rows = gradient.reshape(-1, width)  # (B·T, E)
        of_contract = _gradients(rows, activated, needs_contract)
        rows = rows @ contract
        native.gelu_gradient(hidden, rows, result=rows)
        of_expand = _gradients(rows, normed_2.view(-1, width), needs_expand)
        stream_gradient, attended_gradient, *of_ln_2 = native.residual_norm_gradients(
            stream_gradient.contiguous(),
            (rows @ expand).view_as(normed_2),
            stream_2, moments_2, ln_2,
            rms=options.rms, is_added=True, has_bias=needs_ln_2[1],
        )  # fmt: skip
        rows = cast("Tensor", attended_gradient).view(-1, width)
        of_context = _gradients(rows, context.view(-1, context.shape[-1]), needs_context)
        rows = native.self_attention_gradient(
            (rows @ output).view_as(context),
            context, logsumexp, projected, options.groups, options.mask,
        ).view(-1, projected.shape[-1])  # fmt: skip
        of_attention = _gradients(rows, normed_1.view(-1, width), needs_attention)
        stream_gradient, added_gradient, *of_ln_1 = native.residual_norm_gradients(
            stream_gradient,
            (rows @ attention).view_as(normed_1),
            stream_1, moments_1, ln_1,
            rms=options.rms, is_added=ctx.is_added, has_bias=needs_ln_1[1],
        )  # fmt: skip
        of_weights = (*of_ln_1, *of_attention, *of_context, *of_ln_2, *of_expand, *of_contract)
        return stream_gradient, added_gradient, None, *of_weights


def _linear(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """A product that rounds as `torch.nn.functional.linear` does."""
    if bias is None:
        return x @ matrix.t()
    return torch.addmm(bias.to(x.dtype), x, matrix.t())


def _gradients(
    gradient: Tensor, x: Tensor, needs: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of a matrix and of its bias in float32, where they are needed."""
    matrix = (gradient.t() @ x).float() if needs[0] else None
    return matrix, gradient.sum(0).float() if needs[1] else None
