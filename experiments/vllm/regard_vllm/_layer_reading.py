"""What is read of one layer for one request: chunks of its prompt, then a row a step.

Axes: H query heads, G key/value heads, n queries of a step, S keys so far, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard import Pattern, causal, window
from regard.pattern.readout import Readout
from regard.record import Layer, LayerReadings
from regard.record.accumulator import Accumulator


@dataclass(frozen=True, kw_only=True)
class Heads:
    """The query heads that are read of a layer.

    Attributes:
        query: their numbers.
        key: the key head of each; or all key heads, where all query heads are read.
    """

    query: tuple[int, ...]
    key: tuple[int, ...]

    @classmethod
    def of(cls, chosen: Sequence[int] | None, heads: int, groups: int) -> Heads:
        """Choose heads; None is all.

        Raises:
            ValueError: for a head that the layer does not have.
        """
        if chosen is None:
            return cls(query=tuple(range(heads)), key=tuple(range(groups)))
        if max(chosen) >= heads:
            raise ValueError(f"heads are {list(chosen)}, but the layers have {heads}, from 0")
        return cls(query=tuple(chosen), key=tuple(head * groups // heads for head in chosen))


@dataclass(frozen=True, eq=False, kw_only=True)
class Scores:
    """How a layer makes scores of queries and keys.

    Attributes:
        scale, softcap, window: as of `regard.attention`; None for none of the latter two.
        alibi, sink: ``(H,)``, or None.
    """

    scale: float
    softcap: float | None = None
    window: int | None = None
    alibi: Tensor | None = None
    sink: Tensor | None = None

    def pattern(self, query: Tensor, key: Tensor, heads: Heads) -> Pattern:
        """Make the pattern of the last queries ``(H, n, D)`` over keys ``(G, S, D)``."""
        mask = causal() if self.window is None else causal() & window(self.window)
        picked = list(heads.query)
        return Pattern(
            query[None],
            key[None],
            mask=mask,
            scale=self.scale,
            softcap=self.softcap,
            alibi=None if self.alibi is None else self.alibi[picked],
            sink=None if self.sink is None else self.sink[picked],
        )


@dataclass(eq=False, kw_only=True)
class LayerReading:
    """Reads one layer for one request in memory O(S); for a recording it keeps queries and keys.

    Attributes:
        index: number of the layer.
        name: its path in the model.
        scores: how it makes scores.
        heads: which are read.
        readouts: what is read.
        prompt: length of the prompt.
        records: whether queries and keys are kept.
    """

    index: int
    name: str
    scores: Scores
    heads: Heads
    readouts: Sequence[Readout[Any, Any]]
    prompt: int
    records: bool
    stop: int = 0
    """One past the position of the last row that was read."""
    start: int | None = None
    """Position of the first row that was read."""
    kept: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._accumulator = Accumulator(self.readouts, self.prompt) if self.readouts else None

    def take(self, query: Tensor, key: Tensor, shift: int) -> None:
        """Read the rows of a step.

        Rows that were read before, as after a preemption, are passed over.

        Args:
            query: ``(H, n, D)`` of the heads that are read, at the last positions.
            key: ``(G, S − shift, D)``.
            shift: how many keys come before these, all of which a window hides.

        Raises:
            ValueError: if rows between those read and these are missing.
        """
        length = shift + key.shape[1]
        first = length - query.shape[1]
        if self.start is None:
            self.start = self.stop = first
        if first > self.stop:
            raise ValueError(
                f"the rows from {self.stop} to {first - 1} were not computed for this request: it "
                "was interrupted, and their keys came from the prefix cache; ask again, or have "
                "it skip the prefix cache"
            )
        query = query[:, self.stop - first :]
        if query.shape[1] == 0:
            return
        if self.records:
            new = length - self.stop if self.kept else length
            self.kept.append((query.clone(), key[:, -new:].clone()))
        if self._accumulator is not None:
            pattern = self.scores.pattern(query, key, self.heads)
            self._accumulator.add(pattern.problem, shift)
        self.stop = length

    @property
    def kept_bytes(self) -> int:
        """How many bytes of queries and keys are kept."""
        return sum(tensor.nbytes for pair in self.kept for tensor in pair)

    @property
    def rows(self) -> range:
        """Positions of the rows that were read."""
        return range(self.start or 0, self.stop)

    def results(self) -> LayerReadings:
        """Give what was read; there must be rows."""
        results = () if self._accumulator is None else self._accumulator.results()
        return LayerReadings(
            name=self.name,
            index=self.index,
            heads=self.heads.query,
            rows=self.rows,
            leading=(1, len(self.heads.query)),
            keys=self.stop,
            results=results,
        )

    def layer(self) -> Layer:
        """Make the layer of a recording, of all rows.

        Raises:
            ValueError: if the first rows were not computed.
        """
        if self.start != 0:
            raise ValueError(
                f"a recording needs all rows, but the first {self.start} keys came from the prefix "
                "cache; have the request skip it: skip_reading_prefix_cache=True of "
                "SamplingParams, or a cache_salt of its own in a request to the server"
            )
        query, key = (torch.cat(parts, dim=1) for parts in zip(*self.kept, strict=True))
        pattern = self.scores.pattern(query, key, self.heads)
        return Layer(
            name=self.name,
            kind="self",
            index=self.index,
            heads=self.heads.query,
            rows=range(self.stop),
            get_pattern=partial(_same, pattern),
        )


def _same(pattern: Pattern) -> Pattern:
    return pattern
