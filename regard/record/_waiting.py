"""Steps of a generation that wait to be read together.

A step has one row, and most of the time that it takes to read one is Python's. The rows of several
steps are read in one pass over the latest step's keys, among which are those of the steps before.

Axes: B batch, H query heads, G key/value heads, S keys, D head dimension.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from regard._shapes import Float
from regard._tensors import version
from regard.backends import native
from regard.inputs import Problem
from regard.masks.bounds import AffineBounds, IndexBounds
from regard.record._selection import require_as_seen

_STEPS = 32
# Bytes of keys that wait in a layer. Most caches hold these keys anyway, but some make them for
# each call; and where they are many, the pass itself takes most of the time.
_BYTES = 2**22


class WaitingSteps:
    """Up to 32 rows, and the keys of the latest."""

    def __init__(self) -> None:
        self._problem: Problem | None = None
        self._queries: list[Tensor] = []
        self._bounds: list[tuple[int, int, int]] = []
        """Position, start and stop of each row."""

    @property
    def is_full(self) -> bool:
        """Whether they are to be read now."""
        return len(self._queries) == _STEPS

    def add(self, problem: Problem) -> bool:
        """Let a call wait, if its keys are all the keys so far; return whether it does.

        It does not wait where its row can't be read together with others, where its keys lie in a
        buffer that the model may write to, or where keys changed since the step before it.
        """
        rows = problem.rows
        bounds = rows.bounds
        if problem.queries != 1 or not rows.is_interval or not isinstance(bounds, AffineBounds):
            return False
        if problem.alibi is not None or problem.sink is not None or not _stays(problem.key):
            return False
        if native.objection_to_reading(problem) is not None:
            return False
        before = self._problem
        if before is not None:
            key = problem.key[..., : before.keys, :]
            if key.shape != before.key.shape or not torch.equal(key, before.key):
                return False
        start = min(max(bounds.first_start or 0, 0), problem.keys)
        self._problem = problem
        self._queries.append(problem.query.clone())
        self._bounds.append((bounds.position, start, max(start, bounds.last_stop)))
        return True

    def pop(self) -> Problem | None:
        """Return the rows that waited, over all keys so far; None if there are none.

        Raises:
            RecordError: if the keys were written to or freed meanwhile.
        """
        problem = self._problem
        if problem is None:
            return None
        require_as_seen(
            problem.key,
            0,
            "attended to, before their steps were read; write to them after the block, or take the "
            "readouts of regard.record(..., offload='cpu'), which copies them",
        )
        table = torch.tensor(self._bounds, dtype=torch.int64, device="cpu").T[:, None, None]
        rows = replace(problem.rows, bounds=IndexBounds(*table.unbind()))
        joined = replace(problem, query=torch.cat(self._queries, dim=-2), rows=rows)
        self._problem, self._queries, self._bounds = None, [], []
        return joined


def _stays(key: Float[Tensor, "B G S D"]) -> bool:
    """Return whether keys are a small tensor of their own that nothing wrote to."""
    if key.is_inference() or version(key) > 0:
        return False
    size = key.numel() * key.itemsize
    return size <= _BYTES and size >= key.untyped_storage().nbytes()
