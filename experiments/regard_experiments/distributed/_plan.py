"""What one rank computes: its queries, in tiles, against the keys that come round.

Axes: B batch, H query heads, G key/value heads, L queries and S keys of the whole sequence, n those
of one rank, D head dimension of query and key.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from regard._ranks import agree
from regard.inputs import Problem, Scoring, ScoringOptions, check
from regard.masks import Mask
from regard.masks.rows import Rows
from regard.pattern.readout import Tile
from regard_experiments.distributed._layout import Chunk, Layout
from regard_experiments.distributed.ring import Ring, circulate


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """One attention as this rank sees it, on which all ranks agree."""

    ring: Ring
    problem: Problem
    """With the rank's own shards, without gradients; its rows hide nothing."""
    queries: Layout
    keys: Layout
    chunks: list[tuple[Chunk, Rows]]
    """The rank's queries, each chunk with what it sees of all keys."""

    def circulate(self, *tensors: Tensor) -> Iterator[tuple[int, list[Tensor]]]:
        """Yield each rank and its tensors of keys, as `ring.circulate`: in one message a rank."""
        first, *others = (tensor.reshape(-1) for tensor in tensors)
        flat = torch.cat([first, *others]) if others else first.contiguous()
        for owner, received in circulate(self.ring, flat, lambda rank: self.size(rank, *tensors)):
            yield owner, self.unpacked(received, owner, *tensors)

    def size(self, rank: int, *tensors: Tensor) -> int:
        """Count the numbers in a rank's tensors of keys, which here are these."""
        return sum(math.prod(self._shape(rank, tensor)) for tensor in tensors)

    def unpacked(self, flat: Tensor, rank: int, *tensors: Tensor) -> list[Tensor]:
        """View a rank's tensors of keys in a flat one."""
        shapes = [self._shape(rank, tensor) for tensor in tensors]
        parts = flat.split([math.prod(shape) for shape in shapes])
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

    def _shape(self, rank: int, tensor: Tensor) -> tuple[int, ...]:
        return *tensor.shape[:-2], self.keys.size(rank), tensor.shape[-1]

    def tiles(self, owner: int, key: Tensor, value: Tensor | None) -> Iterator[Tile]:
        """Pair the rank's queries with keys and values of one rank, where they see any.

        A tile's positions are contiguous on either side, so that a mask that was a rule stays one,
        and distances are right.
        """
        for queries, rows in self.chunks:
            for keys in self.keys.chunks(owner):
                size = queries.local.stop - queries.local.start
                cut = rows.crop(slice(0, size), keys.positions)
                if cut.hides_all():
                    continue
                problem = replace(
                    self.problem,
                    query=self.problem.query[..., queries.local, :],
                    key=key[..., keys.local, :],
                    value=None if value is None else value[..., keys.local, :],
                    rows=cut,
                    sink=None,  # it is not a key: it is added once, after all tiles
                )
                places = (queries.local, queries.positions, keys.local, keys.positions)
                yield Tile(*places, problem, self.queries.length)


def make_plan(
    call: str,
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    options: ScoringOptions,
    *,
    refused: Mapping[str, str],
    group: dist.ProcessGroup | None,
    check_finite: bool = False,
) -> tuple[Plan, Problem]:
    """Check this rank's arguments, and that all ranks are about to do the same.

    Args:
        call: the name of the call.
        query: this rank's shard.
        key: likewise.
        value: likewise, if there are values.
        options: as for `regard.attention`; the mask is that of the whole sequence.
        refused: arguments of this call that a ring can't honour, each with the cure.
        group: the ranks.
        check_finite: as for `regard.attention`.

    Returns:
        The plan; and this rank's problem with its gradients.
    """
    ring = Ring(group)
    scoring, problem, failure = Scoring(), None, None
    try:
        scoring, problem = _checked(query, key, value, options, refused, check_finite=check_finite)
    except (TypeError, ValueError) as error:
        failure = error
    facts = {} if problem is None else _facts(call, problem, scoring.mask)
    own = {} if problem is None else {"queries": problem.queries, "keys": problem.keys}
    of_ranks = agree(ring, facts, own, failure)
    assert problem is not None, "or the failure has been raised"
    value = problem.value
    lengths = (_whole(ring, [one[name] for one in of_ranks], name) for name in ("queries", "keys"))
    queries, keys = lengths
    plan = Plan(
        ring=ring,
        problem=replace(problem.detached(), value=None if value is None else value.detach()),
        queries=queries,
        keys=keys,
        chunks=_chunks(ring, problem, scoring.mask, queries, keys),
    )
    return plan, problem


def _checked(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    options: ScoringOptions,
    refused: Mapping[str, str],
    *,
    check_finite: bool,
) -> tuple[Scoring, Problem]:
    scoring = Scoring.of(options)
    if scoring.bias is not None:
        refused = {"bias": "leave it out; masks and alibi say the same in O(L) memory", **refused}
    for name, cure in refused.items():
        raise ValueError(f"{name} can't be honoured over several ranks: {cure}")
    mask = scoring.mask
    if mask is not None and (mask.allowed is not None or mask.bias is not None):
        raise ValueError(
            f"mask is {mask!r}: a dense mask takes the memory of the whole pattern on every rank; "
            "say it as intervals, such as causal, window, documents, padding or prefix"
        )
    unmasked = replace(scoring, mask=None)
    return scoring, check(query, key, value, unmasked, check_finite=check_finite)


def _facts(call: str, problem: Problem, mask: Mask | None) -> dict[str, Any]:
    value = problem.value
    return {
        "the call": call,
        "batch and heads (B, H)": [*problem.heads],
        "key heads G": problem.key.shape[1],
        "the head dimension D": problem.query.shape[-1],
        "the head dimension of value Dv": None if value is None else value.shape[-1],
        "dtype": str(problem.query.dtype),
        "the kind of device": problem.query.device.type,
        "mask": repr(mask),
        "scale": problem.scale,
        "softcap": problem.softcap,
        "alibi": problem.alibi is not None,
        "sink": problem.sink is not None,
        "whether a gradient is wanted": problem.differentiable,
    }


def _whole(ring: Ring, sizes: list[int], name: str) -> Layout:
    """Find the layout of the sequence that these shards make up."""
    layout = Layout(sum(sizes), ring.size)
    wanted = [layout.size(rank) for rank in range(ring.size)]
    if sizes != wanted:
        raise ValueError(
            f"the ranks hold {sizes} {name}, {layout.length} in all, of which the layout gives "
            f"them {wanted}; cut the whole sequence with "
            "regard_experiments.distributed.shard(x, dim)"
        )
    return layout


def _chunks(
    ring: Ring, problem: Problem, mask: Mask | None, queries: Layout, keys: Layout
) -> list[tuple[Chunk, Rows]]:
    """Resolve the mask for the whole sequence, and keep this rank's rows of it."""
    # Where it does not fit, it does so on every rank: they agree on its shape and on these lengths.
    mask, device = Mask() if mask is None else mask, problem.query.device
    rows = mask.resolve(problem.leading, queries.length, keys.length, device)
    everything = slice(0, keys.length)
    return [(chunk, rows.crop(chunk.positions, everything)) for chunk in queries.chunks(ring.rank)]
