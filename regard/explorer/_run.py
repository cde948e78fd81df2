"""One sequence under one model: everything that the page asks about its patterns.

Axes: H heads of a layer, L queries, S keys, D head dimension, Dv of value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd, isfinite
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch

import regard
from regard.explorer._work import ReplacedError
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
STRONGEST = 24
"""Keys of a query that are written out number by number."""
_BANDS = 16  # that a large map is computed in, so that it can be called off in between
_SMALL = 2**22  # weights of a map that is not worth cutting into bands


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
    _heads: dict[tuple[int, int], Pattern] = field(default_factory=dict)
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
        """All heads of a layer, ``(H, L, S)``."""
        pattern = self.layers[layer].pattern
        part: Pattern = pattern[self.sequence] if pattern.ndim == 4 else pattern
        return part

    def head(self, layer: int, head: int) -> Pattern:
        """One head, ``(L, S)``; the same object each time, so that it knows its log-sum-exps."""
        with self._lock:
            if (layer, head) not in self._heads:
                self._heads[layer, head] = self.layer(layer)[head]
            return self._heads[layer, head]

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
        layer: int,
        head: int,
        queries: tuple[int, int],
        keys: tuple[int, int],
        size: tuple[int, int],
        off: Event,
    ) -> Tensor:
        """Average a window of a head's pattern, ``(rows, columns)``, in bands from the top.

        Raises:
            ReplacedError: the event was set meanwhile.
        """
        pattern = self.head(layer, head)
        height, rows = queries[1] - queries[0], min(size[0], queries[1] - queries[0])
        bands = 1
        if height * (keys[1] - keys[0]) > _SMALL:
            shared = gcd(height, rows)
            bands = max(b for b in range(1, _BANDS + 1) if shared % b == 0)
        parts = []
        for band in range(bands):
            if off.is_set():
                raise ReplacedError("replaced")
            first, behind = (queries[0] + height * (band + i) // bands for i in (0, 1))
            parts.append(pattern.image(rows // bands, size[1], queries=(first, behind), keys=keys))
        return torch.cat(parts)

    def row(self, layer: int | str, head: int | str, query: int) -> Tensor:
        """What a query attends to, ``(S,)``."""
        return torch.stack([p[..., query, :] for p in self._chosen(layer, head)]).mean(0)

    def column(self, layer: int | str, head: int | str, key: int) -> Tensor:
        """What attends to a key, ``(L,)``."""
        return torch.stack([p[..., key] for p in self._chosen(layer, head)]).mean(0)

    def cell(self, layer: int, head: int, query: int, key: int) -> dict[str, Any]:
        """One weight and what it comes from."""
        pattern = self.head(layer, head)
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

    def readouts(self, layer: int, head: int) -> Tensor:
        """Entropy, distance, weight on the first key and weight received, ``(4, L)``."""
        entropy, distance, first, received = self.head(layer, head).read(
            regard.Entropy(), regard.Distance(), regard.Mass(0), regard.Received()
        )
        return torch.stack([entropy, distance, first, received])

    def steps(self, layer: int, head: int, query: int) -> dict[str, Any]:
        """One query's attention, number by number; the strongest keys, and what remains."""
        problem = self.head(layer, head).parts()[0].at(torch.tensor([query]))
        steps = {name: tensor.flatten() for name, tensor in written_out(problem)}
        weights, masked = steps["weights"], steps["masked"]
        visible_keys = int((masked != -torch.inf).sum())
        order = weights.argsort(descending=True, stable=True)[: min(STRONGEST, visible_keys)]
        values = None if self.values is None else self.values[layer][head]
        keys = problem.key[0, 0]
        context = None if values is None else weights @ values.to(weights)
        return _told(
            {
                "scale": problem.scale,
                "query": problem.query.flatten().tolist(),
                "logsumexp": float(steps["logsumexp"]),
                "count": visible_keys,
                "keys": [
                    {
                        "position": key,
                        "key": keys[key].tolist(),
                        "score": float(steps["scores"][key]),
                        "scaled": float(steps["scaled"][key]),
                        "weight": float(weights[key]),
                        "value": None if values is None else values[key].tolist(),
                    }
                    for key in order.tolist()
                ],
                "rest": {
                    "count": visible_keys - len(order),
                    "weight": max(0.0, float(weights.sum() - weights[order].sum())),
                },
                "hidden": len(masked) - visible_keys,
                "context": None if context is None else context.tolist(),
            }
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
