"""Products and sums in a fixed order: the result for a row does not depend on other rows.

The rounding of a library's matrix product or vectorized sum depends on the shapes of its operands.
That of these functions does not on a CPU. On a GPU, where bitwise equality is not promised, they
call the library.

Axes: n heads, R rows, C columns, D head dimension.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard._shapes import Float
from regard.backends import native

# Products per pass: they stay in a core's L1 or L2 cache until they are added.
_AT_ONCE = 2**15


def dot_products(
    query: Float[Tensor, "n R D"], key: Float[Tensor, "n C D"]
) -> Float[Tensor, "n R C"]:
    """Compute ``query @ keyᵀ``."""
    if not query.is_cpu:
        return torch.bmm(query, key.mT)
    if query.dtype == torch.float32 and native.why_missing() is None and key.numel() > 0:
        heads = zip(query, key, strict=True)
        return torch.stack([native.matvec(q.contiguous(), k.contiguous(), None) for q, k in heads])
    result = query.new_zeros(len(query), query.shape[1], key.shape[1])
    width = max(1, _AT_ONCE // max(1, query.shape[0] * query.shape[1]))
    factors = query.permute(2, 0, 1)[..., None].contiguous()  # (D, n, R, 1)
    for first in range(0, key.shape[1], width):
        columns = slice(first, first + width)
        others = key[:, columns].permute(2, 0, 1)[:, :, None].contiguous()  # (D, n, 1, c)
        sums = torch.zeros_like(result[..., columns], memory_format=torch.contiguous_format)
        product = torch.empty_like(sums)
        for factor, other in zip(factors, others, strict=True):
            sums.add_(torch.mul(factor, other, out=product))  # two roundings, never a fused one
        result[..., columns] = sums
    return result


def totals(x: Float[Tensor, "*b C"]) -> Float[Tensor, "*b"]:
    """Sum along the last axis; additional zeros do not change the result."""
    return x.cumsum(dim=-1)[..., -1] if x.is_cpu else x.sum(dim=-1)


def add_rows(sums: Float[Tensor, "n *c"], rows: Float[Tensor, "n R *c"]) -> Float[Tensor, "n *c"]:
    """Add rows to running sums in order, so that the result does not depend on blocks."""
    if not sums.is_cpu:
        return sums + rows.sum(dim=1)
    return torch.cat((sums[:, None], rows.to(sums.dtype)), dim=1).cumsum(dim=1)[:, -1]
