"""Whether the parameters of a block fit together, for kernels that read their memory.

Axis letters: E model dimension, H heads, G key/value heads, D head dimension, F hidden channels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from regard.gpt.int8 import Int8Matrix
from regard.gpt.mlp import SwiGLU

if TYPE_CHECKING:
    from regard.gpt.model import Block


def objection_to_shapes(block: Block, dim: int, hidden: int) -> str | None:
    """Name a parameter of another shape than its block computes with, or None.

    A parameter or a module may be replaced by a larger or smaller one. Modules then compute with
    it, or torch refuses; a kernel would read past its end.

    Args:
        block: whose modules are those that a block is made with.
        dim: E.
        hidden: F.
    """
    attn, mlp = block.attn, block.mlp
    head_dim = attn.widths[0] // attn.heads  # D
    expected: list[tuple[str, nn.Module | None, tuple[int, ...]]] = [
        ("ln_1", block.ln_1, (dim,)),
        ("attn.c_attn", attn.c_attn, (sum(attn.widths), dim)),
        ("attn.q_norm", attn.q_norm, (head_dim,)),
        ("attn.k_norm", attn.k_norm, (head_dim,)),
        ("attn.c_proj", attn.c_proj, (dim, attn.widths[0])),
        ("ln_2", block.ln_2, (dim,)),
        ("mlp.c_fc", mlp.c_fc, (hidden * (2 if isinstance(mlp, SwiGLU) else 1), dim)),
        ("mlp.c_proj", mlp.c_proj, (dim, hidden)),
    ]
    for name, module, shape in expected:
        if module is not None and not _has_shape(module, shape):
            return f"{name} has parameters of another shape than {shape}"
    return None


def has_width(module: nn.Module, dim: int) -> bool:
    """Whether the rows of embeddings, or a norm, have so many numbers."""
    matrix = _matrix(module)
    return matrix is not None and _has_shape(module, (*matrix.shape[:-1], dim))


def _has_shape(module: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether a norm or a matrix has it, and what is added to its rows, or scales them, fits."""
    matrix = _matrix(module)
    of_rows = [getattr(module, name, None) for name in ("bias", "scale")]
    return (
        matrix is not None
        and matrix.shape == shape
        and all(tensor is None or tensor.shape == shape[:1] for tensor in of_rows)
    )


def _matrix(module: Any) -> Tensor | None:
    """Its weight; None of a norm without one."""
    matrix: Tensor | None = module.int8_weight if isinstance(module, Int8Matrix) else module.weight
    return matrix
