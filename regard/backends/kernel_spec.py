"""The description of readouts for kernels: what is read, and what the weights are multiplied by.

Axes: B batch, H query heads, G key/value heads, N = B·H flattened heads, L queries, S keys, E terms
of a dot product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Literal

import torch
from torch import Tensor

from regard._shapes import Float, Int

# The product of two such numbers, summed over a dot product of up to 2¹⁶ terms, is within the range
# of float32.
_LARGEST = 2.0**55

Divergence = Literal["kl", "js", "tv"]
"""KL divergence, Jensen–Shannon divergence, total variation distance."""


class Kind(IntEnum):
    """The kernels' readouts, with the values of the constants ``REGARD_…`` in src/native/abi.h."""

    LOGSUMEXP = 0
    MAX = 1
    ENTROPY = 2
    DISTANCE = 3
    MASS = 4
    TOP = 5
    WEIGHTS = 6
    RECEIVED = 7
    LEFT_PRODUCT = 8
    OFFSETS = 9
    IMAGE = 10
    MAX_SCORE = 11
    LAG = 12
    SPANS = 13
    MAX_RECEIVED = 14
    MEAN_RECEIVED = 15
    MAX_BLOCKS = 16
    LARGEST = 17
    REPEATS = 18


@dataclass(frozen=True, eq=False, kw_only=True)
class KernelSpec:
    """A readout for a kernel; src/native/abi.h documents the numbers and the operand."""

    kind: Kind
    shape: tuple[int, ...]
    """Shape of the result without heads."""
    size: int = 0
    columns: int = 0
    height: int = 0
    width: int = 0
    operand: Tensor | None = None
    """A contiguous input tensor."""
    into: Tensor | None = None
    """Contiguous float32 ``(N, *shape)``, N flattened heads, that a kernel may accumulate into."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Factors:
    """What is read in place of weights w: w or its odds w/(1 − w), times factors; float tensors."""

    key: Float[Tensor, "B H S"] | None = None
    """A factor for each key."""
    dot: tuple[Float[Tensor, "B H L E"], Float[Tensor, "B _ S E"]] | None = None
    """A factor for each query and key, their dot product; the latter has G heads or H."""
    largest: Int[Tensor, "B H L"] | None = None
    """For odds: the key of largest weight of each row, −1 for none. None: weights are read."""
    odds: Float[Tensor, "B H L"] | None = None
    """The odds of these keys, from which 1 − w would lose digits."""

    @property
    def is_finite(self) -> bool:
        """Whether no factor makes a hidden key NaN."""
        factors = [f for f in (self.key, *(self.dot or ())) if f is not None and f.numel()]
        largest = [float(torch.linalg.vector_norm(f, torch.inf)) for f in factors]
        return all(number < _LARGEST for number in largest)

    def mapped(
        self,
        of_rows: Callable[[Tensor], Tensor],
        of_keys: Callable[[Tensor], Tensor],
    ) -> Factors:
        """Apply one function to tensors ``(B, H, L, …)``, another one to ``(B, _, S, …)``."""
        kept = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.key is not None:
            kept["key"] = of_keys(self.key)
        if self.dot is not None:
            kept["dot"] = of_rows(self.dot[0]), of_keys(self.dot[1])
        if self.largest is not None and self.odds is not None:
            kept |= {"largest": of_rows(self.largest), "odds": of_rows(self.odds)}
        return replace(self, **kept)

    def select(self, pairs: Int[Tensor, "n"], heads: int) -> Factors:
        """Keep only the heads numbered b·H + h, as n batch entries of one head each."""
        batch, head = pairs // heads, pairs % heads

        def pick(tensor: Tensor) -> Tensor:
            return tensor[batch, head * tensor.shape[1] // heads][:, None]

        return self.mapped(pick, pick)
