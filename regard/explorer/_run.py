"""One sequence under one model: everything that the page asks about its patterns.

Axes: H heads of a layer, L queries, S keys, D head dimension, Dv of value.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import isfinite
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch

import regard
from regard.explorer._means import Mean
from regard.explorer._walk import STRONGEST, walk
from regard.explorer._windows import Windows
from regard.record.heads import read_heads
from regard.record.roles import Role
from regard.steps import written_out
from regard.view.tokens import readable, visible

if TYPE_CHECKING:
    from collections.abc import Sequence
    from threading import Event

    from torch import Tensor

    from regard.pattern import Pattern
    from regard.record import Layer

MEAN = "mean"


@dataclass(eq=False, kw_only=True)
class Run:
    """The layers of a recording, for one sequence of its batch."""

    id: str
    title: str
    tokens: tuple[str, ...]
    layers: tuple[Layer, ...]
    sequence: int = 0
    text: str | None = None
    following: tuple[tuple[int, str, float], ...] | None = None
    """The likeliest next tokens: id, piece, probability."""
    values: tuple[Tensor, ...] | None = None
    """For each layer the values ``(H, S, Dv)``, if they are known."""
    notes: tuple[str, ...] = ()
    _layers: dict[int, Pattern] = field(default_factory=dict)
    _heads: dict[tuple[int, int], Pattern] = field(default_factory=dict)
    _windows: Windows = field(default_factory=Windows)
    _working: dict[tuple[int, int], Lock] = field(default_factory=lambda: defaultdict(Lock))
    _lock: Lock = field(default_factory=Lock)

    def described(self) -> dict[str, Any]:
        """What the page shows first."""
        following = self.following
        return {
            "id": self.id,
            "title": self.title,
            "text": self.text,
            "tokens": [{"text": readable(t), "shown": visible(t)} for t in self.tokens],
            "length": len(self.tokens),
            "causal": all(
                self.layer(layer).parts()[0].rows.causal_from_zero
                for layer in range(len(self.layers))
            ),
            "layers": [
                {"index": layer.index, "name": layer.name, "heads": list(layer.heads)}
                for layer in self.layers
            ],
            "next": None
            if following is None
            else [
                {"token": token, "text": readable(piece), "shown": visible(piece), "probability": p}
                for token, piece, p in following
            ],
            "values": self.values is not None,
            "notes": list(self.notes),
        }

    def layer(self, layer: int) -> Pattern:
        """All heads of a layer, ``(H, L, S)``; the same object each time, as for `head`."""
        with self._lock:
            if layer not in self._layers:
                pattern = self.layers[layer].pattern
                self._layers[layer] = pattern[self.sequence] if pattern.ndim == 4 else pattern
            return self._layers[layer]

    def head(self, layer: int, head: int) -> Pattern:
        """One head, ``(L, S)``; the same object each time, so that it knows its log-sum-exps."""
        whole = self.layer(layer)
        with self._lock:
            known = self._heads.get((layer, head))
            if known is None or (known.parts()[1] is None and whole.parts()[1] is not None):
                known = self._heads[layer, head] = whole[head]
            return known

    def _known(self, layer: int, head: int) -> Pattern:
        """One head with its log-sum-exps, which one thread works out while others wait for it."""
        with self._lock:
            working = self._working[layer, head]
        with working:
            pattern = self.head(layer, head)
            if pattern.parts()[1] is None:
                pattern.read()
        return pattern

    def scores(self, layer: int) -> dict[str, Any]:
        """What each head of a layer does."""
        entry = self.layers[layer]
        part = regard.Layer(
            name=entry.name,
            kind=entry.kind,
            index=entry.index,
            heads=entry.heads,
            rows=entry.rows,
            look=lambda: self.layer(layer),
        )
        scored = read_heads([part], (self.tokens,), progress=False)
        return _told(
            {
                "layer": layer,
                "heads": [
                    {
                        "head": place,
                        "name": scores.name,
                        "meaning": Role(scores.name).meaning,
                        "previous_token": scores.previous_token,
                        "first_token": scores.first_token,
                        "same_token": scores.same_token,
                        "induction": scores.induction,
                        "duplicate_token": scores.duplicate_token,
                        "entropy": scores.entropy,
                        "distance": scores.distance,
                    }
                    for place, scores in enumerate(scored)
                ],
            }
        )

    def thumbnails(self, layer: int, size: int) -> Tensor:
        """Small pictures of all heads of a layer, ``(H, rows, columns)``."""
        return self.layer(layer).image(size, size)

    def map(
        self,
        layer: int | str,
        head: int | str,
        queries: tuple[int, int],
        keys: tuple[int, int],
        block: int,
        off: Event,
    ) -> Tensor:
        """Average a window of a head or a mean to cells of block × block, ``(rows, columns)``.

        Raises:
            ReplacedError: the event was set meanwhile.
        """
        if MEAN in {layer, head}:
            return self.mean(layer, head).map(queries, keys, block, off)
        pattern = self._known(int(layer), int(head))
        return self._windows.read((layer, head), pattern, queries, keys, block, off)

    def mean(self, layer: int | str, head: int | str) -> Mean:
        """The mean over the heads of a layer, or of all layers."""
        return Mean(self._chosen(layer, head))

    def row(self, layer: int | str, head: int | str, query: int) -> Tensor:
        """What a query attends to, ``(S,)``."""
        return self.mean(layer, head).row(query)

    def column(self, layer: int | str, head: int | str, key: int) -> Tensor:
        """What attends to a key, ``(L,)``."""
        return self.mean(layer, head).column(key)

    def cell(self, layer: int | str, head: int | str, query: int, key: int) -> dict[str, Any]:
        """One weight and what it comes from."""
        if MEAN in {layer, head}:
            return _told(self.mean(layer, head).cell(query, key))
        pattern = self.head(int(layer), int(head))
        problem = pattern.parts()[0].window(slice(query, query + 1), slice(key, key + 1))
        steps = dict(written_out(problem.cast(torch.float64)))
        score = float(steps["masked"].flatten()[0])
        return _told(
            {
                "weight": float(pattern[query, key]),
                "score": score,
                "logsumexp": float(pattern.logsumexp[query]),
                "visible": score != -torch.inf,
            }
        )

    def readouts(self, layer: int | str, head: int | str, off: Event | None = None) -> Tensor:
        """Entropy, distance, weight on the first key and weight received, ``(4, L)``.

        Raises:
            ReplacedError: the event was set meanwhile.
        """
        chosen = self._chosen(layer, head)
        if len(chosen) > 1:
            return self.mean(layer, head).readouts(off)
        at = 0 if layer == MEAN else int(layer), 0 if head == MEAN else int(head)
        entropy, distance, first, received = self._known(*at).read(
            regard.Entropy(), regard.Distance(), regard.Mass(0), regard.Received()
        )
        return torch.stack([entropy, distance, first, received])

    def steps(
        self,
        layer: int,
        head: int,
        query: int,
        *,
        first: int = 0,
        count: int = STRONGEST,
        picked: int | None = None,
    ) -> dict[str, Any]:
        """One query's attention, number by number; see `walk`."""
        values = None if self.values is None else self.values[layer][head]
        return _told(
            walk(self.head(layer, head), values, query, first=first, count=count, picked=picked)
        )

    def _chosen(self, layer: int | str, head: int | str) -> Sequence[Pattern]:
        layers = range(len(self.layers)) if layer == MEAN else [int(layer)]
        return [
            self.head(number, place)
            for number in layers
            for place in (range(len(self.layers[number].heads)) if head == MEAN else [int(head)])
        ]


def _told(value: Any) -> Any:
    """Prepare an answer for JSON, which has no NaN and no infinity: None stands for them."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {name: _told(entry) for name, entry in value.items()}
    return [_told(entry) for entry in value] if isinstance(value, list) else value
