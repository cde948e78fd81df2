"""One quantity of the heads of a layer, or of all layers, accumulated over batches.

Axes: H query heads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard._shapes import Float


@dataclass(frozen=True, eq=False)
class HeadStatistic:
    """One quantity of a layer's heads: a maximum, or a sum and the number of its entries."""

    is_largest: bool
    total: Float[Tensor, " H"]
    """In float64."""
    count: Float[Tensor, " H"]

    def joined(self, other: HeadStatistic) -> HeadStatistic:
        """Combine with the statistic of another batch."""
        if self.is_largest:
            total = torch.maximum(self.total, other.total)
        else:
            total = self.total + other.total
        return HeadStatistic(self.is_largest, total, self.count + other.count)

    def to(self, device: torch.device) -> HeadStatistic:
        """Move it."""
        return HeadStatistic(self.is_largest, self.total.to(device), self.count.to(device))

    @property
    def values(self) -> Float[Tensor, " H"]:
        """Return the maximum or mean of each head, ``(H,)``; NaN for a mean of no entries."""
        return self.total if self.is_largest else self.total / self.count
