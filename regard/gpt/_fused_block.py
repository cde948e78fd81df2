"""A block as one node of the autograd graph.

The operations of a small model are short: with a node for each of them, an update spends more time
in autograd and the dispatcher than in the operations. Here the forward and backward passes of a
block are written out, with matrix products by torch and the rest by the kernels. The operations and
their rounding are those of the modules, in the same order.

Axis letters: B batch, T tokens, N = B·T, E model dimension, H heads, G key/value heads, D head
dimension, F hidden channels of the MLP.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.overrides import has_torch_function

from regard._contexts import is_transformed, product_dtype
from regard._modules import has_hooks
from regard._shapes import Float
from regard.backends import native
from regard.gpt._memory_pool import allocate, scratch
from regard.gpt.layers import (
    MLP,
    Attention,
    LayerNorm,
    Linear,
    RMSNorm,
    supports,
    supports_added,
    supports_parameter,
)
from regard.gpt.model import Block
from regard.gpt.unwrap import as_gpt
from regard.masks import Mask


class BlockOptions(NamedTuple):
    """Options of a block, besides its tensors."""

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
    """Dtype of the matrix products, one of the kernels'."""


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


@contextmanager
def fuse(model: nn.Module) -> Iterator[None]:
    """Train with each block as one node of the autograd graph, inside the block of this manager.

    This makes the updates of a small model faster, since its operations are short compared with the
    overhead of autograd and the dispatcher. A block with hooks, dropout, QK-norms, a SwiGLU, rotary
    positions or its own mask, or on another device than the CPU, is computed by its modules.
    `regard.gpt.train` uses it.

    Args:
        model: a GPT, as it is or wrapped.

    Raises:
        TypeError: `model` is no GPT.

    Example:
        >>> from regard.gpt import GPT, GPTConfig, fuse
        >>> model, ids = GPT(GPTConfig(layers=2, heads=2, dim=8)), torch.tensor([[1, 2, 3]])
        >>> with fuse(model):
        ...     model.loss(ids[:, :-1], ids[:, 1:]).backward()
    """
    modules = as_gpt(model, whole=False).h
    blocks = [block for block in modules if type(block) is Block and block.fused is None]
    for block in blocks:
        block.fused = run_fused
    try:
        yield
    finally:
        for block in blocks:
            del block.fused


def run_fused(
    block: Block, x: Float[Tensor, "*b T E"], added: Float[Tensor, "*b T E"] | None
) -> tuple[Float[Tensor, "B T E"], Float[Tensor, "B T E"]] | None:
    """Run a block on ``x + added``; return None if that needs its modules.

    Args:
        block: the block.
        x: the residual stream.
        added: the addition to it; None for none.

    Returns:
        The stream, and the MLP's addition to it.
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
    shapes = _shapes(block.attn.widths, x.shape[-1], len(weights.expand))
    if not all(map(_fits, weights[::2], weights[1::2], shapes)):
        return None
    if not all(weight is None or supports_parameter(weight) for weight in weights):
        return None
    apply: Any = _FusedBlock.apply  # whose type is unknown
    stream, out = apply(x, added, options, *weights)
    return stream, out


def _options(block: Block, dtype: torch.dtype) -> BlockOptions | None:
    """Return a block's options, or None if the fused block does not support it."""
    attn, drop, mlp, norm = block.attn, block.drop, block.mlp, type(block.ln_1)
    if type(attn) is not Attention:
        return None
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
    epsilon = cast("float | None", block.ln_1.eps)
    wide = attn.widths[0] // attn.heads > native.WIDEST
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


def _shapes(widths: Sequence[int], dim: int, hidden: int) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the weights that fit together, in the order of `BlockWeights`.

    A parameter or a module may have been replaced by one of another size. Modules compute with it,
    or torch raises an error; a kernel would read beyond its memory.

    Args:
        widths: H·D, G·D, G·D: of queries, keys and values.
        dim: E.
        hidden: F.
    """
    return (dim,), (sum(widths), dim), (dim, widths[0]), (dim,), (hidden, dim), (dim, hidden)


def _fits(weight: Tensor | None, bias: Tensor | None, shape: tuple[int, ...]) -> bool:
    """Return True if a weight has the shape, and its bias, if any, the size of its rows."""
    if weight is None or weight.shape != shape:
        return False
    return bias is None or bias.shape == shape[:1]


class _Kept(NamedTuple):
    """Tensors saved for the backward pass; the matrices have the dtype of the products."""

    stream_1: Float[Tensor, "N E"]
    normed_1: Float[Tensor, "N E"]
    moments_1: Float[Tensor, "2 N"]
    projected: Float[Tensor, "B T (H+2G)·D"]
    context: Float[Tensor, "B T H·D"]
    logsumexp: Float[Tensor, "B H T"]
    stream_2: Float[Tensor, "B T E"]
    normed_2: Float[Tensor, "N E"]
    moments_2: Float[Tensor, "2 N"]
    hidden: Float[Tensor, "N F"]
    activated: Float[Tensor, "N F"]
    attention: Float[Tensor, "(H+2G)·D E"]
    output: Float[Tensor, "E H·D"]
    expand: Float[Tensor, "F E"]
    contract: Float[Tensor, "E F"]
    ln_1: Float[Tensor, "E"]
    ln_2: Float[Tensor, "E"]


class _LinearGradient(NamedTuple):
    """Buffers for the gradient of a matrix, and which gradients are needed."""

    matrix: Tensor
    """Float32."""
    rounded: Tensor
    """Memory in the dtype of the products; `matrix` itself in float32."""
    needs: tuple[bool, bool]
    """Whether the gradient of the matrix, and of the bias, is needed."""


class _FusedBlock(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, added: Tensor | None, options: BlockOptions, *tensors: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        weights = BlockWeights(*tensors)  # type: ignore[arg-type] # those of `run_fused`
        norm: Any = {"epsilon": options.epsilon, "rms": options.rms}
        shape = x.shape
        rows = x.contiguous().view(-1, shape[-1])  # (N, E)
        added = None if added is None else added.contiguous().view_as(rows)
        kept = _allocate_kept(shape, rows if added is None else None, weights, options)
        attended, out = allocate((rows.shape, options.dtype), (shape, options.dtype))

        native.compute_residual_norm(
            *(rows, added, weights.ln_1, weights.ln_1_bias),
            *(kept.stream_1, kept.normed_1, kept.moments_1),
            **norm,
        )
        projected = kept.projected.view(len(rows), -1)
        _linear(kept.normed_1, kept.attention, weights.attention_bias, projected)
        native.self_attention(
            kept.projected, options.groups, options.mask, kept.context, kept.logsumexp
        )
        _linear(kept.context.view(len(rows), -1), kept.output, weights.context_bias, attended)
        native.compute_residual_norm(
            *(kept.stream_1, attended, weights.ln_2, weights.ln_2_bias),
            *(kept.stream_2.view_as(rows), kept.normed_2, kept.moments_2),
            **norm,
        )
        _linear(kept.normed_2, kept.expand, weights.expand_bias, kept.hidden)
        native.compute_gelu(kept.hidden, kept.activated)
        _linear(kept.activated, kept.contract, weights.contract_bias, out.view_as(rows))
        ctx.save_for_backward(*kept)
        ctx.options, ctx.is_added = options, added is not None
        return kept.stream_2, out

    @staticmethod
    @native.once_differentiable
    def backward(ctx: Any, stream_gradient: Tensor, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # Contiguous, as they were saved, unless hooks on saved tensors changed that.
        kept = _Kept(*[tensor.contiguous() for tensor in ctx.saved_tensors])
        options: BlockOptions = ctx.options
        exact, dtype = torch.float32, options.dtype
        is_rounded = dtype != exact  # the additions to the stream, and so their gradients
        needs = ctx.needs_input_grad  # of the weights and biases from 3 on
        needs_ln_1, needs_attention, needs_output, needs_ln_2, needs_expand, needs_contract = (
            needs[i : i + 2] for i in range(3, len(needs), 2)
        )
        needs_matrices = needs_attention, needs_output, needs_expand, needs_contract
        of_x, *of_added = allocate(
            (kept.stream_2.shape, exact),
            *[(kept.stream_2.shape, dtype)] * (ctx.is_added and is_rounded),
        )
        matrices = kept.attention, kept.output, kept.expand, kept.contract
        shapes = [
            matrix.shape if needs_it else (1,)  # no memory for a gradient that is not needed
            for matrix, (needs_it, _) in zip(matrices, needs_matrices, strict=True)
        ]
        gains_1, bias_1, gains_2, bias_2, *of_matrices = allocate(
            *[(kept.ln_1.shape, exact)] * 4, *[(shape, exact) for shape in shapes]
        )
        of_ln_1 = gains_1, bias_1 if needs_ln_1[1] else None
        of_ln_2 = gains_2, bias_2 if needs_ln_2[1] else None
        rows = kept.normed_1.shape  # N, E
        with scratch(
            *((rows, dtype), (rows, exact), (kept.context.shape, dtype)),
            *((kept.projected.shape, dtype), (kept.hidden.shape, dtype)),
            *[(shape, dtype) for shape in (*shapes, rows) if is_rounded],
        ) as (of_normed, of_stream, of_context, of_projected, of_hidden, *rest):
            *rounded, of_attended = rest if is_rounded else (*of_matrices, of_stream)
            attention, output, expand, contract = map(
                _LinearGradient, of_matrices, rounded, needs_matrices
            )
            of_mlp = _mlp_gradients(
                *(kept, expand, contract, stream_gradient, gradient.reshape(rows)),
                (of_hidden, of_normed),
                native.NormGradients(of_stream, of_attended if is_rounded else None, *of_ln_2),
                options,
            )
            added_rows = of_added[0].view(rows) if of_added else None
            of_attention = _attention_gradients(
                *(kept, attention, output, of_stream, of_attended),
                (of_context, of_projected, of_normed),
                native.NormGradients(of_x.view(rows), added_rows, *of_ln_1),
                options,
            )
        added_gradient = (of_added or [of_x])[0] if ctx.is_added else None
        return of_x, added_gradient, None, *of_ln_1, *of_attention, *of_ln_2, *of_mlp


def _mlp_gradients(
    kept: _Kept,
    expand: _LinearGradient,
    contract: _LinearGradient,
    stream_gradient: Float[Tensor, "B T E"],
    gradient: Float[Tensor, "N E"],
    memory: tuple[Tensor, Tensor],
    norm: native.NormGradients,
    options: BlockOptions,
) -> tuple[Tensor | None, ...]:
    """Differentiate the MLP and the norm before it.

    Args:
        kept: from the forward pass.
        expand: output for the gradient of the first matrix.
        contract: output for the gradient of the second matrix.
        stream_gradient: gradient of the stream after the MLP.
        gradient: gradient of the MLP's addition to the stream.
        memory: buffers for the gradients of the hidden channels and of the norm's result.
        norm: outputs for the gradients of the norm and of the stream before it.
        options: options of the block.

    Returns:
        The gradients of the first matrix and its bias, then of the second and its bias.
    """
    of_hidden, of_normed = memory
    of_contract = _gradients(gradient, kept.activated, contract)
    torch.mm(gradient, kept.contract, out=of_hidden)
    native.gelu_gradient(kept.hidden, of_hidden, result=of_hidden)
    of_expand = _gradients(of_hidden, kept.normed_2, expand)
    torch.mm(of_hidden, kept.expand, out=of_normed)
    native.residual_norm_gradients(
        stream_gradient.contiguous().view_as(of_normed),
        *(of_normed, kept.stream_2.view_as(of_normed), kept.moments_2, kept.ln_2, norm),
        rms=options.rms,
    )
    return *of_expand, *of_contract


def _attention_gradients(
    kept: _Kept,
    attention: _LinearGradient,
    output: _LinearGradient,
    of_stream: Float[Tensor, "N E"],
    gradient: Float[Tensor, "N E"],
    memory: tuple[Tensor, Tensor, Tensor],
    norm: native.NormGradients,
    options: BlockOptions,
) -> tuple[Tensor | None, ...]:
    """Differentiate attention and the norm before it; as `_mlp_gradients`.

    Args:
        kept: from the forward pass.
        attention: output for the gradient of the matrix of queries, keys and values.
        output: output for the gradient of the output matrix.
        of_stream: gradient of the stream after attention.
        gradient: gradient of attention's addition to the stream.
        memory: buffers for the gradients of contexts, of the projection and of the norm's result.
        norm: outputs for the gradients of the norm and of the stream before it.
        options: options of the block.
    """
    of_context, of_projected, of_normed = memory
    context_rows = kept.context.view(len(gradient), -1)
    of_output = _gradients(gradient, context_rows, output)
    torch.mm(gradient, kept.output, out=of_context.view_as(context_rows))
    native.self_attention_gradient(
        *(of_context, kept.context, kept.logsumexp, kept.projected),
        *(options.groups, options.mask, of_projected),
    )
    of_rows = of_projected.view(len(gradient), -1)
    of_attention = _gradients(of_rows, kept.normed_1, attention)
    torch.mm(of_rows, kept.attention, out=of_normed)
    native.residual_norm_gradients(
        *(of_stream, of_normed, kept.stream_1, kept.moments_1, kept.ln_1, norm),
        rms=options.rms,
    )
    return *of_attention, *of_output


def _allocate_kept(
    shape: torch.Size, stream: Tensor | None, weights: BlockWeights, options: BlockOptions
) -> _Kept:
    """Allocate the tensors saved for the backward pass; only the matrices are filled.

    Args:
        shape: B, T, E.
        stream: the stream before attention, if it exists already.
        weights: weights of the block.
        options: options of the block.
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
    if is_rounded:
        for result, matrix in zip(kept[-len(matrices) :], matrices, strict=True):
            result.copy_(matrix)
    else:
        kept += matrices
    return _Kept(*[stream, *kept, weights.ln_1, weights.ln_2])


def _linear(x: Tensor, matrix: Tensor, bias: Tensor | None, result: Tensor) -> None:
    """Compute a product with the rounding of `torch.nn.functional.linear`, into `result`."""
    if bias is None:
        torch.mm(x, matrix.t(), out=result)
    else:
        torch.addmm(bias.to(x.dtype), x, matrix.t(), out=result)


def _gradients(
    gradient: Float[Tensor, "N O"], x: Float[Tensor, "N I"], to: _LinearGradient
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of a matrix and of its bias in float32, where they are needed.

    Args:
        gradient: gradient of the product.
        x: the other factor of the product.
        to: output for the gradient of the matrix.
    """
    needs_matrix, needs_bias = to.needs
    if needs_matrix:
        torch.mm(gradient.t(), x, out=to.rounded)
        if to.rounded is not to.matrix:
            to.matrix.copy_(to.rounded)
    return to.matrix if needs_matrix else None, gradient.sum(0).float() if needs_bias else None
