"""The largest singular values of a pattern, computed from products with it.

Axes: L queries, S keys; m vectors of a basis, b vectors of a block.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from regard._arguments import check_whole
from regard._shapes import Float

_OVERSAMPLING = 8  # additional vectors of a block, for faster convergence
_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-11}  # relative to the largest singular value


def singular_values(
    times: Callable[[Tensor], Tensor],
    transposed: Callable[[Tensor], Tensor],
    shape: torch.Size,
    k: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Float[Tensor, "*b k"]:
    """Find the k largest, in descending order; see `Pattern.singular_values`.

    Args:
        times: multiplies the pattern by ``(..., S, n)``.
        transposed: multiplies ``(..., n, L)`` by the pattern.
        shape: shape of the pattern, ``(..., L, S)``.
        k: number of singular values.
        dtype: dtype of the pattern.
        device: device of the pattern.

    Raises:
        ValueError: if k is below 1.
    """
    check_whole(k, "k")
    if k < 1:
        raise ValueError(f"k must be at least 1, but is {k}")
    *leading, queries, keys = shape
    rank = min(queries, keys)
    k = min(k, rank)
    if 0 in (*leading, k):
        return torch.zeros(*leading, k, dtype=dtype, device=device)
    generator = torch.Generator(device="cpu").manual_seed(0)
    block = min(k + _OVERSAMPLING, rank)

    def draw(rows: int) -> Tensor:
        drawn = torch.randn(rows, block, dtype=torch.float64, generator=generator, device="cpu")
        return drawn.to(device)

    basis = draw(queries).new_zeros(*leading, queries, 0)
    products = basis.new_zeros(*leading, 0, keys)
    found = basis.new_zeros(*leading, k)
    settled = torch.zeros(leading, dtype=torch.bool, device=device)
    new = times(draw(keys)).double()  # (..., L, b)
    while True:
        new = _orthonormal(new[..., : rank - basis.shape[-1]], basis)
        basis = torch.cat((basis, new), dim=-1)  # (..., L, m)
        products = torch.cat((products, transposed(new.mT).double()), dim=-2)
        left, values, right = torch.linalg.svd(products, full_matrices=False)
        found = torch.where(settled[..., None], found, values[..., :k])
        vectors = right[..., :block, :].mT  # (..., S, b)
        residual = times(vectors).double() - basis @ left[..., :block] * values[..., None, :block]
        off = residual[..., :k].norm(dim=-2).amax(dim=-1)
        settled |= off <= _TOLERANCE[dtype] * values[..., 0]
        if bool(settled.all()) or basis.shape[-1] == rank:
            return found.to(dtype)
        length = residual.norm(dim=-2, keepdim=True)
        spent = length <= torch.finfo(torch.float64).eps * values[..., None, :1]
        new = torch.where(spent, draw(queries), residual / length)


def _orthonormal(
    new: Float[Tensor, "*b L n"], basis: Float[Tensor, "*b L m"]
) -> Float[Tensor, "*b L n"]:
    """Orthonormalize vectors against a basis and each other, twice because of rounding."""
    for _ in range(2):
        new = torch.linalg.qr(new - basis @ (basis.mT @ new)).Q
    return new
