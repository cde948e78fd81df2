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

from regard._contexts import is_transformed, product_dtype
from regard._shapes import Float
from regard.backends import native
from regard.gpt._block_shapes import block_shapes, fits
from regard.gpt._linear import Linear
from regard.gpt._memory_pool import allocate, scratch
from regard.gpt._pointwise import (
    LayerNorm,
    RMSNorm,
    has_hooks,
    supports,
    supports_added,
    supports_parameter,
)
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
    if x.ndim != 3 or x.dtype != torch.float32 or not supports(x):
        return None
    dtype = product_dtype(x)
    if not supports_added(added, x, dtype):
        return None
    options = _options(block, dtype)
    if options is None or native.why_missing() is not None:
        return None
    weights = _weights(block)
    shapes = block_shapes(block.attn.widths, x.shape[-1], len(weights.expand))
    if not all(map(fits, weights[::2], weights[1::2], shapes)):
        return None
    if not all(weight is None or supports_parameter(weight) for weight in weights):
        return None
    apply: Any = _FusedBlock.apply  # whose type is unknown
    stream, out = apply(x, added, options, *weights)
    return stream, out


def _options(block: Block, dtype: torch.dtype) -> BlockOptions | None:
    """What it computes with, or None where that is more than is written out here."""
    attn, drop, mlp, norm = block.attn, block.drop, block.mlp, type(block.ln_1)
    if norm not in {LayerNorm, RMSNorm} or type(block.ln_2) is not norm or type(mlp) is not MLP:
        return None
    maps = (attn.c_attn, attn.c_proj, mlp.c_fc, mlp.c_proj)
    if any(type(linear) is not Linear for linear in maps) or type(drop) is not nn.Dropout:
        return None
    if any(map(has_hooks, (block.ln_1, attn, block.ln_2, mlp, drop, *maps))):
        return None
    if attn.q_norm is not None or "project" in vars(attn):
        return None
    if (attn.training and attn.dropout) or (drop.training and drop.p):
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
        weights = BlockWeights(*tensors)  # type: ignore[arg-type] # those of `run_fused`
        norm: Any = {"epsilon": options.epsilon, "rms": options.rms}
        dtype, shape = options.dtype, x.shape
        rows = x.contiguous().view(-1, shape[-1])  # (B·T, E)
        added = None if added is None else added.contiguous().view_as(rows)
        stream_1, normed_1, moments_1, projected, context, logsumexp, *rest = _kept(
            shape, rows if added is None else None, weights, options
        )
        stream_2, normed_2, moments_2, hidden, activated, *matrices = rest
        attention, output, expand, contract = matrices
        attended, out = allocate((rows.shape, dtype), (shape, dtype))

        native.compute_residual_norm(
            rows, added, weights.ln_1, weights.ln_1_bias, stream_1, normed_1, moments_1, **norm
        )
        _linear(normed_1, attention, weights.attention_bias, projected.view(len(rows), -1))
        native.self_attention(projected, options.groups, options.mask, context, logsumexp)
        _linear(context.view(len(rows), -1), output, weights.context_bias, attended)
        native.compute_residual_norm(
            stream_1, attended, weights.ln_2, weights.ln_2_bias,
            stream_2.view_as(rows), normed_2, moments_2, **norm,
        )  # fmt: skip
        _linear(normed_2, expand, weights.expand_bias, hidden)
        native.compute_gelu(hidden, activated)
        _linear(activated, contract, weights.contract_bias, out.view_as(rows))
        ctx.save_for_backward(
            *(stream_1, normed_1, moments_1, projected, context, logsumexp),
            *(stream_2, normed_2, moments_2, hidden, activated, *matrices),
            *(weights.ln_1, weights.ln_2),
        )
        ctx.options, ctx.is_added = options, added is not None
        return stream_2, out

    @staticmethod
    @native.once_differentiable
    def backward(ctx: Any, stream_gradient: Tensor, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # Contiguous, as they were saved: hooks on saved tensors need not keep to that.
        saved = [tensor.contiguous() for tensor in ctx.saved_tensors]
        stream_1, normed_1, moments_1, projected, context, logsumexp, *rest = saved
        stream_2, normed_2, moments_2, hidden, activated, *rest = rest
        attention, output, expand, contract, ln_1, ln_2 = rest
        options: BlockOptions = ctx.options
        exact, dtype = torch.float32, options.dtype
        is_rounded = dtype != exact  # what is added to the stream, and so its gradient
        needs = ctx.needs_input_grad  # of the weights and biases from 3 on
        needs_ln_1, needs_attention, needs_output, needs_ln_2, needs_expand, needs_contract = (
            needs[i : i + 2] for i in range(3, len(needs), 2)
        )
        of_x, *of_added = allocate(
            (stream_2.shape, exact), *[(stream_2.shape, dtype)] * (ctx.is_added and is_rounded)
        )
        shapes = [
            matrix.shape if needs_it else (1,)  # what nobody needs shall not take memory
            for matrix, (needs_it, _) in zip(
                (attention, output, expand, contract),
                (needs_attention, needs_output, needs_expand, needs_contract),
                strict=True,
            )
        ]
        gains_1, bias_1, gains_2, bias_2, *of_matrices = allocate(
            *[(ln_1.shape, exact)] * 4, *[(shape, exact) for shape in shapes]
        )
        with scratch(
            *((normed_1.shape, dtype), (normed_1.shape, exact), (context.shape, dtype)),
            *((projected.shape, dtype), (hidden.shape, dtype)),
            *[(shape, dtype) for shape in (*shapes, normed_1.shape) if is_rounded],
        ) as (of_normed, of_stream, of_context, of_projected, of_hidden, *rest):
            *rounded, of_attended = rest if is_rounded else (*of_matrices, of_stream)
            results_1, results_2, results_3, results_4 = zip(of_matrices, rounded, strict=True)
            of_ln_1 = gains_1, bias_1 if needs_ln_1[1] else None
            of_ln_2 = gains_2, bias_2 if needs_ln_2[1] else None

            of_rows = gradient.reshape(normed_1.shape)  # (B·T, E)
            of_contract = _gradients(of_rows, activated, needs_contract, *results_4)
            torch.mm(of_rows, contract, out=of_hidden)
            native.gelu_gradient(hidden, of_hidden, result=of_hidden)
            of_expand = _gradients(of_hidden, normed_2, needs_expand, *results_3)
            torch.mm(of_hidden, expand, out=of_normed)
            native.residual_norm_gradients(
                stream_gradient.contiguous().view_as(of_normed),
                *(of_normed, stream_2.view_as(of_normed), moments_2, ln_2),
                native.NormGradients(of_stream, of_attended if is_rounded else None, *of_ln_2),
                rms=options.rms,
            )
            of_rows = of_attended
            context_rows = context.view(len(of_rows), -1)
            of_output = _gradients(of_rows, context_rows, needs_output, *results_2)
            torch.mm(of_rows, output, out=of_context.view_as(context_rows))
            native.self_attention_gradient(
                of_context,
                context,
                logsumexp,
                projected,
                options.groups,
                options.mask,
                of_projected,
            )
            of_rows = of_projected.view(len(of_rows), -1)
            of_attention = _gradients(of_rows, normed_1, needs_attention, *results_1)
            torch.mm(of_rows, attention, out=of_normed)
            native.residual_norm_gradients(
                *(of_stream, of_normed, stream_1, moments_1, ln_1),
                native.NormGradients(
                    of_x.view_as(of_normed),
                    of_added[0].view_as(of_normed) if of_added else None,
                    *of_ln_1,
                ),
                rms=options.rms,
            )
        added_gradient = (of_added or [of_x])[0] if ctx.is_added else None
        of_weights = (*of_ln_1, *of_attention, *of_output, *of_ln_2, *of_expand, *of_contract)
        return of_x, added_gradient, None, *of_weights


def _kept(
    shape: torch.Size, stream: Tensor | None, weights: BlockWeights, options: BlockOptions
) -> list[Tensor]:
    """What the backward pass reads, to be written; the matrices in the dtype of the products.

    Args:
        shape: B, T, E.
        stream: that before attention, if it is at hand.
        weights: of the block.
        options: likewise.

    Returns:
        Stream, norm and moments before attention; projection, context and log-sum-exps; stream,
        norm and moments after it; the MLP's channels before and after GELU; the four matrices.
    """
    batch, tokens, width = shape
    rows, exact, dtype = batch * tokens, torch.float32, options.dtype
    matrices = (weights.attention, weights.context, weights.expand, weights.contract)
    is_rounded = dtype != exact
    norm = (((rows, width), dtype), ((2, rows), exact))
    hidden = ((rows, len(weights.expand)), dtype)
    kept = allocate(
        *norm,
        ((batch, tokens, len(weights.attention)), dtype),
        ((batch, tokens, weights.context.shape[1]), dtype),
        ((batch, options.heads, tokens), exact),
        *((shape, exact), *norm, hidden, hidden),
        *[(matrix.shape, dtype) for matrix in matrices if is_rounded],
        *[((rows, width), exact)] * (stream is None),
    )
    stream = kept.pop() if stream is None else stream
    if not is_rounded:
        return [stream, *kept, *matrices]
    for result, matrix in zip(kept[-4:], matrices, strict=True):
        result.copy_(matrix)
    return [stream, *kept]


def _linear(x: Tensor, matrix: Tensor, bias: Tensor | None, result: Tensor) -> None:
    """Write a product that rounds as `torch.nn.functional.linear` does."""
    if bias is None:
        torch.mm(x, matrix.t(), out=result)
    else:
        torch.addmm(bias.to(x.dtype), x, matrix.t(), out=result)


def _gradients(
    gradient: Tensor, x: Tensor, needs: tuple[bool, bool], matrix: Tensor, rounded: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of a matrix and of its bias in float32, where they are needed.

    Args:
        gradient: of the product.
        x: what the matrix was multiplied with.
        needs: of matrix and bias, whether it is needed.
        matrix: where the gradient of the matrix is written.
        rounded: the same in the dtype of the products; `matrix` itself in float32.
    """
    if needs[0]:
        torch.mm(gradient.t(), x, out=rounded)
        if rounded is not matrix:
            matrix.copy_(rounded)
    return matrix if needs[0] else None, gradient.sum(0).float() if needs[1] else None
