"""Merging readouts of tiles into those of the whole pattern.

A readout's class defines what to read of a tile and how results are merged. Where they are gathered
depends on its axes: along queries on the rank that holds them; along keys in sums or maxima that
travel with the keys; anything else in sums or maxima over all ranks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from regard.pattern.readout import Readout, Sizes, Tile
from regard_experiments.distributed._plan import Plan
from regard_experiments.distributed.ring import KeySums


def gathering(readout: Readout[Any, Any], sizes: Sizes, plan: Plan) -> Gathering:
    """Make what gathers a readout.

    Raises:
        TypeError: for a readout whose class has no `merge`.
        ValueError: for one that does not fit the pattern.
    """
    if not readout.is_mergeable:
        raise TypeError(
            f"{readout!r} can't be read over several ranks, since {type(readout).__name__}.merge, "
            "which says how the results of two parts become one, is not defined; define it, or "
            "put query and key together with regard_experiments.distributed.unshard and make a "
            "regard.Pattern"
        )
    if "query" in readout.axes:  # this rank's own, which stay
        return Gathering(readout, replace(sizes, queries=plan.problem.queries), plan)
    if "key" in readout.axes:
        return _AlongKeys(readout, sizes, plan)
    return _OverAll(readout, sizes, plan)


class Gathering:
    """One readout, gathered tile by tile.

    Args:
        readout: the readout.
        sizes: of the whole pattern.
        plan: what this rank computes.
    """

    def __init__(self, readout: Readout[Any, Any], sizes: Sizes, plan: Plan) -> None:
        self.readout = readout
        self.sizes = sizes
        self.plan = plan
        self.state = readout.begin(sizes)

    def of_tile(self, tile: Tile) -> tuple[Readout[Any, Any], ...]:
        """The readouts to take of a tile."""
        return self.readout.of_tile(self.state, tile)

    def merge(self, tile: Tile, results: tuple[Any, ...]) -> None:
        """Merge the results of a tile."""
        self.readout.merge(self.state, tile, results)

    def pass_on(self, owner: int) -> None:
        """Send on what belongs to the keys of a rank, which are done with: nothing, for most."""

    def finish(self) -> Any:
        """Give the result."""
        return self.readout.finish(self.state, self.sizes)


class _AlongKeys(Gathering):
    """Sums or maxima for keys, which travel with them."""

    def __init__(self, readout: Readout[Any, Any], sizes: Sizes, plan: Plan) -> None:
        own = replace(sizes, keys=plan.keys.size(plan.ring.rank))
        super().__init__(readout, own, plan)
        per_key = readout.begin(replace(sizes, keys=1)).numel()
        self._sums = KeySums(
            plan.ring, lambda rank: per_key * plan.keys.size(rank), readout.reduction
        )

    def pass_on(self, owner: int) -> None:
        self._sums.add(owner, self.state.reshape(-1))
        ring = self.plan.ring
        following = self.plan.keys.size((owner - 1) % ring.size)
        self.state = self.readout.begin(replace(self.sizes, keys=following))

    def finish(self) -> Any:
        self.state = self._sums.wait().reshape(self.readout.begin(self.sizes).shape)
        return super().finish()


class _OverAll(Gathering):
    """Sums or maxima that every rank has its part of."""

    def finish(self) -> Any:
        for part in self.state if isinstance(self.state, tuple) else (self.state,):
            if isinstance(part, torch.Tensor):
                self.plan.ring.reduce(part, self.readout.reduction)
        return super().finish()
