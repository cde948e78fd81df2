"""What a monitor read, update by update: a number for each quantity and head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard._shapes import Float
from regard.record.sites import KINDS, AttentionKind


class Head(NamedTuple):
    """A head of a model, and the kind of attention that it belongs to.

    Example:
        >>> from regard.lens.monitor import Head
        >>> Head("cross", 3, 5).short, str(Head("self", 3, 5))
        ('cross.3.5', 'layer 3, head 5')
    """

    kind: AttentionKind
    layer: int
    """Its number among the layers of this kind, in the order of their first calls."""
    head: int

    @property
    def short(self) -> str:
        """Its name in charts: ``3.5`` is head 5 of layer 3, ``cross.3.5`` of cross-attention."""
        kind = "" if self.kind == "self" else f"{self.kind}."
        return f"{kind}{self.layer}.{self.head}"

    def __str__(self) -> str:
        kind = "" if self.kind == "self" else f"{self.kind}-attention "
        return f"{kind}layer {self.layer}, head {self.head}"


@dataclass(frozen=True)
class LayerPlace:
    """A layer of heads: where it is in the model."""

    kind: AttentionKind
    layer: int
    name: str
    """Path of the module that attends."""
    heads: int
    groups: int
    """Key heads."""

    def all_heads(self) -> tuple[Head, ...]:
        """Its heads, in order."""
        return tuple(Head(self.kind, self.layer, head) for head in range(self.heads))


@dataclass(frozen=True, eq=False)
class UpdateReading:
    """What was read in one update."""

    update: int
    """How many updates came before."""
    places: tuple[LayerPlace, ...]
    values: Mapping[str, Tensor]
    """By quantity, a number for each head of all places: ``(N,)``, float64."""

    @property
    def heads(self) -> tuple[Head, ...]:
        """The heads, in the order of the numbers."""
        return tuple(head for place in self.places for head in place.all_heads())

    def by_head(self, quantity: str) -> dict[Head, float]:
        """The numbers of a quantity."""
        return dict(zip(self.heads, self.values[quantity].tolist(), strict=True))


class History:
    """The readings so far, in the order of their updates."""

    def __init__(self) -> None:
        self.readings: list[UpdateReading] = []

    def add(self, reading: UpdateReading) -> None:
        """Add a reading; those of later updates, which a resumed training run makes anew, go."""
        while self.readings and self.readings[-1].update >= reading.update:
            self.readings.pop()
        self.readings.append(reading)

    @property
    def heads(self) -> tuple[Head, ...]:
        """All heads that were read: by kind, layer and head."""
        places = {place for reading in self.readings for place in reading.places}
        heads = {head for place in places for head in place.all_heads()}
        return tuple(sorted(heads, key=lambda h: (KINDS.index(h.kind), h.layer, h.head)))

    def values(self, quantity: str) -> Float[Tensor, "U N"]:
        """The numbers of a quantity, ``(U, N)``: updates down, heads across; NaN where not read."""
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
