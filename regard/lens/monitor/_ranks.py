"""Combines the readings of all ranks, each of which computes a part of the batch.

Axes: N heads of all layers.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from regard.lens.monitor._tally import Tally
from regard.lens.monitor.history import LayerPlace
from regard.record import RecordError


def is_shared(group: dist.ProcessGroup | None) -> bool:
    """Return True if there are other ranks."""
    ready = dist.is_available() and dist.is_initialized()
    return ready and dist.get_world_size(group) > 1


def is_main(group: dist.ProcessGroup | None) -> bool:
    """Return True on the rank that warns and writes: the first of the group."""
    return not is_shared(group) or dist.get_rank(group) == 0


def joined(
    places: tuple[LayerPlace, ...],
    tallies: Mapping[str, Tally],
    group: dist.ProcessGroup | None,
    device: torch.device,
) -> dict[str, Tally]:
    """Combine the tallies ``(N,)`` of all ranks: the maximum of maxima, the sum of sums and counts.

    Raises:
        RecordError: on every rank, if they read different layers or quantities.
    """
    _require_equal(repr((places, sorted(tallies))), group, device)
    if not tallies:
        return {}
    of_largest = [tally.total for tally in tallies.values() if tally.is_largest]
    of_sums = [tally.total for tally in tallies.values() if not tally.is_largest]
    largest = _stacked(of_largest, places, device)
    sums = torch.stack(
        # A maximum over ranks may drop a NaN, a sum does not.
        [*_stacked(of_sums, places, device), *largest.isnan().double()]
        + [tally.count.to(device) for tally in tallies.values()]
    )
    dist.all_reduce(sums, group=group)
    if len(largest):
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    totals, is_nan, counts = sums.split([len(of_sums), len(of_largest), len(tallies)])
    largest_ones, summed = iter(torch.where(is_nan > 0, torch.nan, largest)), iter(totals)
    return {
        name: Tally(
            tally.is_largest, next(largest_ones if tally.is_largest else summed), counts[number]
        )
        for number, (name, tally) in enumerate(tallies.items())
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
