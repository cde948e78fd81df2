"""Whether the parameters of a block fit together, for kernels that read their memory.

A parameter or a module may be replaced by a larger or smaller one. Modules then compute with it, or
torch refuses; a kernel would read past its end.

Axis letters: E model dimension, H heads, G key/value heads, D head dimension, F hidden channels.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

NAMES = ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
"""The modules with parameters that each block has."""


def block_shapes(
    widths: Sequence[int], dim: int, hidden: int, *, gated: bool = False
) -> tuple[tuple[int, ...], ...]:
    """The shapes of the weights of `NAMES`.

    Args:
        widths: H·D, G·D, G·D, of queries, keys and values.
        dim: E.
        hidden: F.
        gated: whether the MLP makes a gate for each hidden channel.
    """
    return (
        (dim,),
        (sum(widths), dim),
        (dim, widths[0]),
        (dim,),
        (2 * hidden if gated else hidden, dim),
        (dim, hidden),
    )


def fits(weight: Tensor | None, bias: Tensor | None, shape: tuple[int, ...]) -> bool:
    """Whether a weight has a shape, and a bias, if there is one, as many numbers as rows."""
    if weight is None or weight.shape != shape:
        return False
    return bias is None or bias.shape == shape[:1]
