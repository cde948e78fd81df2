"""Rotary position embedding: scores depend on positions only by distance.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from regard._shapes import Float, Int

__all__ = ["Rotation", "rotary"]


@dataclass(frozen=True, eq=False)
class Rotation:
    """The rotation of some positions, shared by all layers; made by `Rotation.of`.

    Channels i and i + D/2 form a pair ("half-split"), as in GPT-NeoX and Llama of `transformers`;
    the paper pairs the neighbours 2i and 2i + 1 instead. The two differ by a permutation of the
    channels, so weights trained with one do not work with the other.

    Attributes:
        cos, sin: cosine and sine for each position and pair, ``(L, D/2)``, or ``(B, 1, L, D/2)``
            if each sequence has its own positions.

    Example:
        >>> import torch
        >>> from regard.nn import Rotation
        >>> rotation = Rotation.of(torch.arange(5), dim=6)
        >>> rotation(torch.randn(2, 5, 6)).shape
        torch.Size([2, 5, 6])
    """

    cos: Float[Tensor, "*#b L half"]
    sin: Float[Tensor, "*#b L half"]

    @classmethod
    def of(
        cls,
        positions: Int[Tensor, "*b L"],
        dim: int,
        *,
        base: float = 10_000.0,
        dtype: torch.dtype = torch.float32,
    ) -> Rotation:
        """Compute cosines and sines: pair i of a head rotates by ``position · base^(−2i/D)``.

        Args:
            positions: ``(L,)``, or ``(B, L)`` for separate positions per sequence.
            dim: D, even.
            base: above 0; a larger base makes the last pairs rotate more slowly.
            dtype: dtype of the table; float32 resolves the angles of long texts, bfloat16 does not.

        Raises:
            ValueError: if dim is odd, or base is not a finite number above 0.

        Source: Su et al. 2021, arXiv:2104.09864, section 3.2.2.
        """
        if dim < 2 or dim % 2:
            raise ValueError(f"dim is {dim}; expected an even number, since channels form pairs")
        if not 0 < base < math.inf:
            raise ValueError(f"base is {base}; expected a finite number above 0")
        return cls.by(positions, frequencies_of(dim, base, dtype=dtype, device=positions.device))

    @classmethod
    def by(cls, positions: Int[Tensor, "*b L"], frequencies: Float[Tensor, "half"]) -> Rotation:
        """Compute cosines and sines: pair i of a head rotates by ``position · frequencies[i]``.

        Args:
            positions: ``(L,)``, or ``(B, L)`` for separate positions per sequence.
            frequencies: radians a position, ``(D/2,)``; the table has their dtype.

        Example:
            >>> import torch
            >>> from regard.nn import Rotation
            >>> Rotation.by(torch.arange(5), torch.tensor([1.0, 0.0])).cos[:, 1]
            tensor([1., 1., 1., 1., 1.])
        """
        angles = positions[..., None] * frequencies  # (L, D/2) or (B, L, D/2)
        if angles.ndim == 3:
            angles = angles[:, None]  # (B, 1, L, D/2)
        return cls(angles.cos(), angles.sin())

    def __call__(self, x: Float[Tensor, "*b L D"]) -> Float[Tensor, "*b L D"]:
        """Rotate queries or keys ``(B, H, L, D)``; the dtype is kept."""
        first, second = x.chunk(2, dim=-1)  # (B, H, L, D/2) each
        rotated = torch.cat(
            [first * self.cos - second * self.sin, second * self.cos + first * self.sin], dim=-1
        )
        return rotated.to(x.dtype)


def frequencies_of(
    dim: int,
    base: float,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> Float[Tensor, "half"]:
    """Return the radians by which each pair of D channels rotates from one position to the next."""
    exponent = torch.arange(0, dim, 2, device=device, dtype=dtype) / dim  # (D/2,)
    return base**-exponent


def rotary(
    query: Float[Tensor, "*b L D"], key: Float[Tensor, "*g S D"], *, base: float = 10_000.0
) -> tuple[Float[Tensor, "*b L D"], Float[Tensor, "*g S D"]]:
    """Rotate query and key by their positions, so that scores depend only on distances.

    Key j has position j, and query i has position S − L + i, as everywhere in `regard`. Channels
    are paired as in `Rotation`.

    Args:
        query: ``(B, H, L, D)``, D even.
        key: ``(B, G, S, D)``.
        base: as for `Rotation.of`.

    Raises:
        ValueError: if D is odd, the head dimensions differ, or base is out of range.

    Source: Su et al. 2021, arXiv:2104.09864.

    Example:
        >>> import regard, torch
        >>> from regard.nn import rotary
        >>> query, key, value = torch.randn(3, 2, 5, 8).unbind()
        >>> query, key = rotary(query, key)
        >>> regard.attention(query, key, value, mask=regard.causal()).shape
        torch.Size([2, 5, 8])
    """
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(
            f"query has head dimension {query.shape[-1]} and key {key.shape[-1]}; they must agree"
        )
    queries, keys = query.shape[-2], key.shape[-2]
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    first = min(0, keys - queries)
    positions = torch.arange(first, keys, device=query.device)
    rotation = Rotation.of(positions, query.shape[-1], base=base, dtype=dtype)
    of_query, of_key = (
        Rotation(rotation.cos[start:], rotation.sin[start:])
        for start in (keys - queries - first, -first)
    )
    return of_query(query), of_key(key)
