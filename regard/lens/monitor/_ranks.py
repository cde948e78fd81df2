"""Statistics of heads, combined over batches and over ranks, each of which reads its own batch.

Axes: H query heads of a layer, N heads of all layers.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from regard._shapes import Float
from regard.lens.monitor.history import LayerPlace
from regard.record import RecordError


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


def is_shared(group: dist.ProcessGroup | None) -> bool:
    """Return True if there are other ranks."""
    ready = dist.is_available() and dist.is_initialized()
    return ready and dist.get_world_size(group) > 1


def is_main(group: dist.ProcessGroup | None) -> bool:
    """Return True on the rank that warns and writes: the first of the group."""
    return not is_shared(group) or dist.get_rank(group) == 0


def joined(
    places: tuple[LayerPlace, ...],
    statistics: Mapping[str, HeadStatistic],
    group: dist.ProcessGroup | None,
    device: torch.device,
) -> dict[str, HeadStatistic]:
    """Combine the statistics ``(N,)`` of all ranks: maxima of maxima, sums of sums and counts.

    Raises:
        RecordError: on every rank, if they read different layers or quantities.
    """
    _require_equal(repr((places, sorted(statistics))), group, device)
    if not statistics:
        return {}
    of_largest = [statistic.total for statistic in statistics.values() if statistic.is_largest]
    of_sums = [statistic.total for statistic in statistics.values() if not statistic.is_largest]
    largest = _stacked(of_largest, places, device)
    sums = torch.stack(
        # A maximum over ranks may drop a NaN, a sum does not.
        [*_stacked(of_sums, places, device), *largest.isnan().double()]
        + [statistic.count.to(device) for statistic in statistics.values()]
    )
    dist.all_reduce(sums, group=group)
    if len(largest):
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    totals, is_nan, counts = sums.split([len(of_sums), len(of_largest), len(statistics)])
    largest_ones, summed = iter(torch.where(is_nan > 0, torch.nan, largest)), iter(totals)
    return {
        name: HeadStatistic(
            statistic.is_largest,
            next(largest_ones if statistic.is_largest else summed),
            counts[number],
        )
        for number, (name, statistic) in enumerate(statistics.items())
    }


def _stacked(rows: list[Tensor], places: tuple[LayerPlace, ...], device: torch.device) -> Tensor:
    heads = sum(place.heads for place in places)
    return torch.stack(rows).to(device) if rows else torch.zeros(0, heads, device=device).double()


def _require_equal(layout: str, group: dist.ProcessGroup | None, device: torch.device) -> None:
    """Raise on every rank if ranks read different layers or quantities."""
    checksum = zlib.crc32(layout.encode())
    ends = torch.tensor([checksum, -checksum], device=device)
    dist.all_reduce(ends, op=dist.ReduceOp.MAX, group=group)
    most, least = ends.tolist()
    if most != -least:
        raise RecordError(
            f"the ranks read different layers or quantities, this one {layout}; let all of them "
            "run the same layers in an update, or give group= the ranks that do"
        )
