"""The weights of an attention whose rows and keys lie on several ranks; none of them is stored.

Axes: B batch, H query heads, N = B·H of them numbered through, L queries and S keys of the whole
sequence, n queries of this rank.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any, NoReturn, Unpack

import torch
import torch.distributed as dist
from torch import Tensor

from regard._ranks import agree
from regard._shapes import Float
from regard.errors import Error
from regard.inputs import ScoringOptions
from regard.pattern.internal_readouts import LogSumExp
from regard.pattern.readable import Readable
from regard.pattern.reading import take
from regard.pattern.readout import Readout, Sizes, Tile
from regard_experiments.distributed._merge import take_in_sink
from regard_experiments.distributed._plan import Plan, make_plan
from regard_experiments.distributed._readouts import Gathering, gathering


class ShardedPattern(Readable):
    """All weights of an attention over the ranks of a group, shape ``(B, H, L, S)``.

    Each rank keeps its queries, its keys, and one number a row. Making one, and reading it, is a
    matter of all ranks at the same time: keys go round the ring. Of what a `Pattern` can do, it
    takes readouts, by `read` or by their names such as ``entropy()``; no single weights.

    Args:
        query: this rank's queries, ``(B, H, n, D)``.
        key: this rank's keys, ``(B, G, m, D)``.
        mask, scale, softcap, alibi, sink: as for `regard_experiments.distributed.attention`.
        group: the ranks; None is the default group.

    Raises:
        ValueError: for arguments that do not fit together, on this rank or between ranks.
        TypeError: for arguments of another kind.
        Error: if there is no process group, if another rank has failed, and where
            anything but a readout is called for.

    Example:
        A group of one rank; `torchrun` starts more.

        >>> import torch, torch.distributed as dist, regard
        >>> from regard_experiments.distributed import ShardedPattern, shard
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> x = shard(torch.eye(3), -2)
        >>> pattern = ShardedPattern(x, x, mask=regard.causal(), scale=1.0)
        >>> pattern.entropy()
        tensor([0.0000, 0.5822, 0.9753])
        >>> dist.destroy_process_group()
    """

    def __init__(
        self,
        query: Float[Tensor, "*b n D"],
        key: Float[Tensor, "*g m D"],
        *,
        group: dist.ProcessGroup | None = None,
        **options: Unpack[ScoringOptions],
    ) -> None:
        plan, _ = make_plan("ShardedPattern", query, key, None, options, refused={}, group=group)
        self._plan, self._of_rows = plan, _logsumexp(plan)

    @classmethod
    def of_plan(cls, plan: Plan, logsumexp: Float[Tensor, "B H n"]) -> ShardedPattern:
        """Make a pattern of a plan and the log-sum-exps that a forward pass gave."""
        plan = replace(plan, problem=replace(plan.problem, value=None))
        pattern = cls.__new__(cls)
        pattern._plan, pattern._of_rows = plan, logsumexp.detach()  # noqa: SLF001 - its own class
        return pattern

    def _refuse(self, *arguments: Any, **options: Any) -> NoReturn:  # noqa: ARG002 - of any method
        """Say what to do in place of anything but readouts."""
        raise Error(
            f"this pattern lies on {self._plan.ring.size} ranks, which can take readouts of it "
            "together, such as read(TopK(8), Entropy()) or entropy(); for anything else put query "
            "and key together with regard_experiments.distributed.unshard, and make a "
            "regard.Pattern"
        )

    __getitem__ = __matmul__ = __rmatmul__ = crop = dense = verify = plot = to = _refuse

    @property
    def shape(self) -> torch.Size:
        """``(B, H, L, S)`` of the whole pattern, with the leading dimensions of the query."""
        plan = self._plan
        return torch.Size((*plan.problem.leading, plan.queries.length, plan.keys.length))

    @property
    def dtype(self) -> torch.dtype:
        """Dtype that weights come in: float64 for a float64 query, else float32."""
        return self._plan.problem.exact_dtype

    @property
    def device(self) -> torch.device:
        """Where this rank's query and key lie, and results come to lie."""
        return self._plan.problem.query.device

    @property
    def logsumexp(self) -> Float[Tensor, "*b n"]:
        """Log-sum-exp of each of this rank's rows, ``(B, H, n)``; a sink is included."""
        return self._plan.problem.restore(self._of_rows)

    def __repr__(self) -> str:
        *leading, queries, keys = self.shape
        heads = " × ".join(map(str, leading)) + " × " if leading else ""
        ring = self._plan.ring
        return (
            f"ShardedPattern({heads}{queries} queries × {keys} keys, rank {ring.rank} of "
            f"{ring.size})"
        )

    def _repr_html_(self) -> str:
        return f"<code>{self!r}</code>"  # a picture would have every rank at work

    @torch.no_grad()
    def read(self, *readouts: Readout[Any, Any]) -> tuple[Any, ...]:
        """Take several readouts while the keys go round once; every rank takes the same ones.

        A result with an axis of queries, such as `Entropy`, comes for this rank's queries; one of
        keys, `Received`, for this rank's keys; any other, `Offsets` and `Image`, whole on every
        rank. Positions of keys are those in the whole sequence. Of keys of equal weight, the first
        ones count as stronger.

        Memory on each rank is that of its own results, of the pictures, and of a neighbour's keys.

        Raises:
            TypeError: for a readout whose class does not define `merge`.
            ValueError: if the ranks take different readouts.
            Error: if another rank has failed.
        """
        plan, sizes = self._plan, _sizes(self._plan)
        gatherings, failure = [], None
        try:
            gatherings = [gathering(readout, sizes, plan) for readout in readouts]
        except (TypeError, ValueError, IndexError) as error:
            failure = error
        facts = {"the call": "read", "readouts": [repr(readout) for readout in readouts]}
        agree(plan.ring, facts, failure=failure)
        return _gathered(gatherings, plan, self._of_rows.flatten(0, 1))


def _logsumexp(plan: Plan) -> Float[Tensor, "B H n"]:
    """Compute the log-sum-exp of the rank's rows over all keys."""
    problem = plan.problem
    (rows,) = _gathered([gathering(LogSumExp(), _sizes(plan), plan)], plan, None)
    total: Tensor = rows.reshape(*problem.heads, problem.queries)
    if problem.sink is not None:
        take_in_sink(total.new_empty(*total.shape, 0), total, problem.sink)
    return total


def _sizes(plan: Plan) -> Sizes:
    """Sizes of the whole pattern."""
    problem = plan.problem
    lengths = plan.queries.length, plan.keys.length
    device = problem.query.device
    return Sizes(problem.leading, *lengths, problem.exact_dtype, device, problem.group)


def _gathered(
    gatherings: list[Gathering], plan: Plan, logsumexp: Float[Tensor, "N n"] | None
) -> tuple[Any, ...]:
    """Go round the ring once, and take the readouts of each tile."""
    for owner, (key,) in plan.circulate(plan.problem.key):
        for tile in plan.tiles(owner, key, None):
            of_rows = None if logsumexp is None else logsumexp[:, tile.local_queries]
            readouts = [one.of_tile(tile) for one in gatherings]
            results = iter(_read_tile([r for some in readouts for r in some], tile, of_rows))
            for one, some in zip(gatherings, readouts, strict=True):
                one.merge(tile, tuple(islice(results, len(some))))
        for one in gatherings:
            one.pass_on(owner)
    return tuple(one.finish() for one in gatherings)


def _read_tile(
    readouts: list[Readout[Any, Any]], tile: Tile, logsumexp: Float[Tensor, "N n"] | None
) -> tuple[Any, ...]:
    """Take readouts of a tile, heads numbered through."""
    problem = tile.problem
    batch, heads = problem.heads
    sizes = Sizes(
        (batch * heads,),
        problem.queries,
        problem.keys,
        problem.exact_dtype,
        problem.query.device,
    )
    return take(readouts, problem, sizes, logsumexp, None)
