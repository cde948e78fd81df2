"""One quantity of the heads of a layer, or of all layers, as it comes from several batches.

Axes: H query heads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard._shapes import Float


@dataclass(frozen=True, eq=False)
class Tally:
    """One quantity of a layer's heads: the largest, or a sum and how many entries are in it."""

    is_largest: bool
    total: Float[Tensor, " H"]
    """In float64."""
    count: Float[Tensor, " H"]

    def joined(self, other: Tally) -> Tally:
        """Take in what was read of another batch."""
        if self.is_largest:
            total = torch.maximum(self.total, other.total)
        else:
            total = self.total + other.total
        return Tally(self.is_largest, total, self.count + other.count)

    def to(self, device: torch.device) -> Tally:
        """Move it."""
        return Tally(self.is_largest, self.total.to(device), self.count.to(device))

    @property
    def values(self) -> Float[Tensor, " H"]:
        """The largest, or the mean, of each head: ``(H,)``; NaN for a mean of no entries."""
        return self.total if self.is_largest else self.total / self.count
