"""The readings of a monitor: a number per update, quantity and head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard._shapes import Float
from regard.record.sites import KINDS, AttentionKind


class Head(NamedTuple):
    """A head of a model: kind of attention, layer and head.

    Example:
        >>> from regard.lens.monitor import Head
        >>> Head("cross", 3, 5).short, str(Head("self", 3, 5))
        ('cross.3.5', 'layer 3, head 5')
    """

    kind: AttentionKind
    layer: int
    """Index among the layers of this kind, in the order of their first calls."""
    head: int

    @property
    def short(self) -> str:
        """Return its name in charts: ``3.5``, or ``cross.3.5`` for cross-attention."""
        kind = "" if self.kind == "self" else f"{self.kind}."
        return f"{kind}{self.layer}.{self.head}"

    def __str__(self) -> str:
        kind = "" if self.kind == "self" else f"{self.kind}-attention "
        return f"{kind}layer {self.layer}, head {self.head}"


@dataclass(frozen=True)
class LayerPlace:
    """The place of a layer in the model."""

    kind: AttentionKind
    layer: int
    name: str
    """Path of the module that attends."""
    heads: int
    groups: int
    """Key heads."""

    def all_heads(self) -> tuple[Head, ...]:
        """Return its heads, in order."""
        return tuple(Head(self.kind, self.layer, head) for head in range(self.heads))


@dataclass(frozen=True, eq=False)
class UpdateReading:
    """The readings of one update."""

    update: int
    """Number of the update, from 0."""
    places: tuple[LayerPlace, ...]
    values: Mapping[str, Tensor]
    """For each quantity, a number per head of all layers, ``(N,)``, float64."""

    @property
    def heads(self) -> tuple[Head, ...]:
        """Return the heads, in the order of the numbers."""
        return tuple(head for place in self.places for head in place.all_heads())

    def by_head(self, quantity: str) -> dict[Head, float]:
        """Return the numbers of a quantity."""
        return dict(zip(self.heads, self.values[quantity].tolist(), strict=True))


class History:
    """The readings so far, in the order of their updates."""

    def __init__(self) -> None:
        self.readings: list[UpdateReading] = []

    def add(self, reading: UpdateReading) -> None:
        """Add a reading, and drop those of later updates, which a resumed training run repeats."""
        while self.readings and self.readings[-1].update >= reading.update:
            self.readings.pop()
        self.readings.append(reading)

    @property
    def heads(self) -> tuple[Head, ...]:
        """Return all heads that were read, sorted by kind, layer and head."""
        places = {place for reading in self.readings for place in reading.places}
        heads = {head for place in places for head in place.all_heads()}
        return tuple(sorted(heads, key=lambda h: (KINDS.index(h.kind), h.layer, h.head)))

    def values(self, quantity: str) -> Float[Tensor, "U N"]:
        """Return a quantity of N heads at U updates, ``(U, N)``; NaN where it was not read."""
        heads = self.heads
        size = len(self.readings), len(heads)
        table = torch.full(size, torch.nan, dtype=torch.float64, device="cpu")
        columns: dict[Sequence[LayerPlace], list[int]] = {}
        number = {head: column for column, head in enumerate(heads)}
        for row, reading in enumerate(self.readings):
            if reading.places not in columns:
                columns[reading.places] = [number[head] for head in reading.heads]
            table[row, columns[reading.places]] = reading.values[quantity]
        return table
