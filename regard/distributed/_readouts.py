"""Merging readouts of blocks into those of the whole pattern.

A readout is a reduction: what it needs of two blocks is what it found in each. Rows lie on the
rank that holds the queries; sums for keys travel home with the keys; what is about the whole
pattern is added up over the ranks.

Axes: N heads numbered through, S keys of the whole sequence, n queries and m keys of a rank, r rows
of a block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from regard.distributed.ring import Homeward
from regard.pattern.readouts import (
    Distance,
    Entropy,
    Image,
    Mass,
    Max,
    Offsets,
    Received,
    Top,
    TopK,
)
from regard.pattern.stream import stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float, Int
    from torch import Tensor

    from regard.distributed._plan import Block, Plan
    from regard.mask.rows import Rows
    from regard.pattern.readout import Readout, Sizes


def merged(readout: Readout[Any, Any], sizes: Sizes, plan: Plan) -> Merger:
    """Make what merges a readout.

    Raises:
        TypeError: for a readout that is not among those of `regard.pattern.readouts`.
        ValueError: for one that does not fit the pattern.
    """
    kind = _MERGERS.get(type(readout))
    if kind is None:
        known = ", ".join(sorted(known.__name__ for known in _MERGERS))
        raise TypeError(
            f"{readout!r} can't be read over several ranks, since nothing says how to merge it; "
            f"those that can are {known}"
        )
    return kind(readout, sizes, plan)


class Merger(ABC):
    """One readout, gathered block by block.

    Args:
        readout: what is asked for.
        sizes: of the whole pattern.
        plan: what this rank computes.
    """

    def __init__(self, readout: Any, sizes: Sizes, plan: Plan) -> None:
        self.readout = readout
        self.whole = sizes
        self.plan = plan
        self.rows = replace(sizes, queries=plan.problem.queries)

    def asked(self, block: Block) -> list[Readout[Any, Any]]:  # noqa: ARG002 - for those that cut
        """Say what is to be read of a block."""
        return [self.readout]

    @abstractmethod
    def add(self, block: Block, logsumexp: Float[Tensor, "N r"], found: Sequence[Any]) -> None:
        """Take in what was found in a block, and the log-sum-exp of its rows."""

    def pass_on(self, owner: int) -> None:  # noqa: B027 - most have nothing that travels
        """Send on what belongs to the keys of a rank, which are done with."""

    @abstractmethod
    def finish(self) -> Any:
        """Give the result."""


class _Rows(Merger):
    """A number a row; this kind takes the largest over the blocks."""

    def __init__(self, readout: Any, sizes: Sizes, plan: Plan) -> None:
        super().__init__(readout, sizes, plan)
        self.state = self.rows.zeros(self.rows.queries)

    def add(self, block: Block, logsumexp: Tensor, found: Sequence[Any]) -> None:  # noqa: ARG002
        rows = self.state[:, block.here]
        rows.copy_(torch.maximum(rows, found[0]))

    def finish(self) -> Tensor:
        return self.rows.restore(self.state)


class _Sums(_Rows):
    """A number a row that adds up over its keys, such as an entropy."""

    def add(self, block: Block, logsumexp: Tensor, found: Sequence[Any]) -> None:  # noqa: ARG002
        self.state[:, block.here] += found[0]


class _Mass(_Sums):
    """The keys are named by their positions in the sequence, and cut to each block's."""

    def __init__(self, readout: Mass, sizes: Sizes, plan: Plan) -> None:
        super().__init__(readout, sizes, plan)
        _, marked = readout.begin(replace(sizes, queries=0))
        self.marked = marked.bool()

    def asked(self, block: Block) -> list[Readout[Any, Any]]:
        return [Mass(self.marked[block.keys])]


class _Distance(Merger):
    """Means over blocks are weighed by the share of the row that lies in each."""

    def __init__(self, readout: Distance, sizes: Sizes, plan: Plan) -> None:
        super().__init__(readout, sizes, plan)
        self.moment, self.share = (self.rows.zeros(self.rows.queries) for _ in range(2))

    def asked(self, block: Block) -> list[Readout[Any, Any]]:  # noqa: ARG002
        return [self.readout, Mass(slice(None))]

    def add(self, block: Block, logsumexp: Tensor, found: Sequence[Any]) -> None:  # noqa: ARG002
        distance, share = (one.double() for one in found)
        self.moment[:, block.here] += distance * share
        self.share[:, block.here] += share

    def finish(self) -> Tensor:
        mean = torch.where(self.share == 0, 0, self.moment / self.share)
        return self.rows.restore(mean)


class _TopK(Merger):
    """The strongest of the strongest."""

    def __init__(self, readout: TopK, sizes: Sizes, plan: Plan) -> None:
        super().__init__(readout, sizes, plan)
        self.state = readout.begin(self.rows)

    def add(self, block: Block, logsumexp: Tensor, found: Sequence[Any]) -> None:  # noqa: ARG002
        (top,) = found
        kept = (one[:, block.here] for one in self.state)
        shifted = torch.where(top.positions < 0, -1, top.positions + block.keys.start)
        weights, positions = (
            torch.cat(pair, dim=-1) for pair in zip(kept, (top.weights, shifted), strict=True)
        )
        by_place = _last_if_none(positions).argsort(dim=-1)
        by_weight = weights.gather(-1, by_place).argsort(dim=-1, descending=True, stable=True)
        best = by_place.gather(-1, by_weight)[..., : self.state.weights.shape[-1]]
        self.state.weights[:, block.here] = weights.gather(-1, best)
        self.state.positions[:, block.here] = positions.gather(-1, best)

    def finish(self) -> Top:
        return Top(*(self.rows.restore(tensor) for tensor in self.state))


def _last_if_none(positions: Int[Tensor, "N r k"]) -> Int[Tensor, "N r k"]:
    return positions.masked_fill(positions < 0, torch.iinfo(torch.int64).max)


class _Received(Merger):
    """Sums for keys, which travel with them."""

    def __init__(self, readout: Received, sizes: Sizes, plan: Plan) -> None:
        super().__init__(readout, sizes, plan)
        self.homeward = Homeward(plan.ring, lambda rank: sizes.heads * plan.keys.size(rank))
        self.part = self._nothing(plan.ring.rank)

    def add(self, block: Block, logsumexp: Tensor, found: Sequence[Any]) -> None:  # noqa: ARG002
        self.part[:, block.among] += found[0]

    def pass_on(self, owner: int) -> None:
        self.homeward.add(owner, self.part.reshape(-1))
        self.part = self._nothing((owner - 1) % self.plan.ring.size)

    def finish(self) -> Tensor:
        return self.whole.restore(self.homeward.home().reshape(self.part.shape))

    def _nothing(self, owner: int) -> Tensor:
        return self.whole.zeros(self.plan.keys.size(owner))


class _Offsets(Merger):
    """Means along a block's diagonals are taken by how many of its queries they are over."""

    def __init__(self, readout: Offsets, sizes: Sizes, plan: Plan) -> None:
        super().__init__(readout, sizes, plan)
        self.weight, self.count = readout.begin(sizes)

    def add(self, block: Block, logsumexp: Tensor, found: Sequence[Any]) -> None:  # noqa: ARG002
        count = _queries_that_see(block.problem.rows, self.readout.n)
        self.weight += found[0] * count
        self.count += count

    def finish(self) -> Tensor:
        for one in (self.weight, self.count):
            self.plan.ring.sum(one)
        result: Tensor = self.readout.finish((self.weight, self.count), self.whole)
        return result


def _queries_that_see(rows: Rows, n: int) -> Float[Tensor, "N n"]:
    """Count the queries that see the key 0 … n−1 positions before them.

    An interval of keys is one of offsets: each query counts from the nearest to the furthest.
    """
    tables = (rows.spread(t).flatten(0, 1) for t in (rows.positions, rows.start, rows.stop))
    position, start, stop = tables
    nearest = (position - stop + 1).clamp(min=0)
    furthest = (position - start).clamp(max=n - 1)
    seen = (start < stop) & (nearest <= furthest)
    step = torch.ones_like(position, dtype=torch.float64)
    change = step.new_zeros(len(position), n + 1)
    change.scatter_add_(1, torch.where(seen, nearest, n), step)
    change.scatter_add_(1, torch.where(seen, furthest + 1, n), -step)
    return change.cumsum(dim=1)[:, :n]


class _Image(Merger):
    """Pixels need not end where blocks do, so each block adds to the picture of the whole."""

    def __init__(self, readout: Image, sizes: Sizes, plan: Plan) -> None:
        super().__init__(readout, sizes, plan)
        self.state = readout.begin(sizes)

    def asked(self, block: Block) -> list[Readout[Any, Any]]:  # noqa: ARG002
        return []

    def add(self, block: Block, logsumexp: Tensor, found: Sequence[Any]) -> None:  # noqa: ARG002
        for part in stream(block.problem, logsumexp):
            rows = _moved(part.rows, block.queries.start)
            columns = _moved(part.columns, block.keys.start)
            self.readout.add(self.state, replace(part, rows=rows, columns=columns))

    def finish(self) -> Tensor:
        self.plan.ring.sum(self.state.pixels)
        result: Tensor = self.readout.finish(self.state, self.whole)
        return result


def _moved(span: slice, by: int) -> slice:
    return slice(span.start + by, span.stop + by)


_MERGERS: dict[type[Readout[Any, Any]], type[Merger]] = {
    Distance: _Distance,
    Entropy: _Sums,
    Image: _Image,
    Mass: _Mass,
    Max: _Rows,
    Offsets: _Offsets,
    Received: _Received,
    TopK: _TopK,
}
