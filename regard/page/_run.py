"""One run of a model over a text: the answers to the page's requests about its patterns.

Axes: H heads of a layer, L queries, S keys, D head dimension, Dv of value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from threading import Event, Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard._shapes import Float
from regard.errors import Error
from regard.lens import Views
from regard.lens.naming.head_scores import score_heads
from regard.lens.view_names import VIEWS
from regard.page._bands import (
    KnownHead,
    PendingHeads,
    fits_band,
    readouts_along,
    thumbnail,
)
from regard.page._errors import PageError
from regard.page._heads import STRONGEST, for_json, scores_entry, scores_of, walk
from regard.page._windows import Window, Windows, average_window, finest_block
from regard.page._work import require_wanted
from regard.pattern import MeanPattern, Pattern
from regard.pattern.readouts import Blocks
from regard.pattern.weighted import WeightedPattern
from regard.record import Layer
from regard.steps import written_out
from regard.view.tokens import readable, visible

MEAN = "mean"
PICTURE = 64
"""Pixels of a thumbnail along a side, unless a request names another number."""
_LINES = 2**19
"""Maximum weights of rows or a column for a fast request: some tens of milliseconds on one core."""
_WINDOW = 2**22
"""Maximum weights of a window for a fast request; they are computed a block at a time."""
_SKETCH = 2**24
"""Maximum weights of a sketch for a fast request."""
_AT_ONCE = 2**22
"""Maximum weights of a layer whose heads are scored at once; of more, a head at a time."""


class LayerRead(NamedTuple):
    """What the page shows of all heads of a layer, read while the model ran."""

    scores: tuple[dict[str, Any], ...]
    pictures: Float[Tensor, "H rows columns"]
    """Thumbnails of `PICTURE` pixels."""
    is_causal: bool


def read_layer(layer: Layer, tokens: tuple[str, ...]) -> LayerRead:
    """Score the heads of a layer of one text, and make their thumbnails."""
    pattern = layer.pattern if layer.pattern.ndim == 3 else layer.pattern[0]
    scores = score_heads([layer], (tokens,), progress=False)
    return LayerRead(
        tuple(scores_entry(one, place) for place, one in enumerate(scores)),
        torch.stack([thumbnail(pattern[head], PICTURE, None) for head in range(len(pattern))]),
        pattern.is_causal,
    )


def views_with(objection: Callable[[str], str | None]) -> list[dict[str, Any]]:
    """Return the views as the page's switch shows them, each with why there is none of a run."""
    return [
        {"name": one.name, "title": one.title, "meaning": one.meaning, "objection": objection(name)}
        for name, one in VIEWS.items()
    ]


def weights_of(pattern: Pattern | WeightedPattern) -> Pattern:
    """Return the weights that a view multiplies, or themselves."""
    own = pattern.pattern if isinstance(pattern, WeightedPattern) else pattern
    assert isinstance(own, Pattern), "a view is of a pattern"
    return own


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
    """The most probable next tokens: id, piece, probability."""
    probabilities: Tensor | None = None
    """Probability of every next token, ``(V,)``, if a model ran."""
    before: tuple[float, ...] | None = None
    """For a run with changes: the probabilities of `following` without them."""
    causal: bool | None = None
    """Whether all its attention is causal; None to ask its patterns."""
    added: tuple[bool, ...] | None = None
    """True for each token that the user did not write, such as a template's; None for none."""
    values: tuple[tuple[Tensor, ...], ...] | None = None
    """The values ``(S, Dv)`` of each head by layer, if they are known."""
    notes: tuple[str, ...] = ()
    effects: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Measured effects on its next token, by what was switched off."""
    objection: str | None = None
    """Why queries and keys are not kept, in a clause; None if they are. Layers then run the model
    again for their patterns, of which one is cached."""
    read: tuple[LayerRead, ...] = ()
    """If queries and keys are not kept: what was read of each layer while the model ran."""
    views: Views | None = None
    """Its layers in each view."""
    view: str = "weight"
    """The view that its answers are of."""
    base: Run | None = None
    """The same run in the view ``"weight"``; None if that is this."""
    _views: dict[str, Run] = field(default_factory=dict)
    _layers: dict[int, Pattern] = field(default_factory=dict)
    _heads: dict[tuple[int, int], Pattern] = field(default_factory=dict)
    _readouts: dict[tuple[int | str, int | str], Tensor] = field(default_factory=dict)
    _scores: dict[int, dict[str, Any]] = field(default_factory=dict)
    _windows: Windows = field(default_factory=Windows)
    _pending: PendingHeads = field(default_factory=PendingHeads)
    _lock: Lock = field(default_factory=Lock)
    _making: Lock = field(default_factory=Lock)

    def describe(self) -> dict[str, Any]:
        """Return what the page shows first."""
        following = self.following
        return {
            "id": self.id,
            "title": self.title,
            "text": self.text,
            "tokens": [
                {"text": readable(token), "label": visible(token)}
                | ({"added": True} if self.added is not None and self.added[place] else {})
                for place, token in enumerate(self.tokens)
            ],
            "length": len(self.tokens),
            "causal": self.is_causal,
            "layers": [
                {"index": layer.index, "name": layer.name, "heads": list(layer.heads)}
                for layer in self.layers
            ],
            "next": None
            if following is None
            else [
                {"token": token, "text": readable(piece), "label": visible(piece), "probability": p}
                | ({} if self.before is None else {"before": self.before[place]})
                for place, (token, piece, p) in enumerate(following)
            ],
            "values": self.values is not None,
            "notes": list(self.notes),
            **({} if self.objection is None else {"kept": False}),
        }

    def describe_views(self, wanted: str = "weight") -> list[dict[str, Any]]:
        """Return the views: name, title and meaning, and why there is none of this run.

        Args:
            wanted: the view that is tried first: of that of the answer it is known then alone.
        """
        with suppress(PageError):
            self.seen(wanted)
        return views_with(self._objection_to)

    def _objection_to(self, view: str) -> str | None:
        if view == "weight":
            return None
        if self.objection is not None:
            return "queries, keys and values of so long a text are not kept"
        if view == "toward" and self.before is not None:
            return "the answer is that of the text as it is; take the changes back"
        return self._known_views.objection(view)

    @property
    def _known_views(self) -> Views:
        return self.views or Views(self.layers, sequence=self.sequence)

    def seen(self, view: str) -> Run:
        """Return this run in a view; the latest is cached, with what was read of it.

        Raises:
            PageError: there is no such view of it.
        """
        if view == self.view:
            return self
        with self._lock:
            if view in self._views:
                return self._views[view]
        why = self._objection_to(view)
        if why is not None:
            raise PageError(f"{VIEWS[view].title}: {why}")
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.name[0] != "_"}
        # Pictures that were read while the model ran are of weights.
        made = Run(**own | {"view": view, "base": self, "read": ()})
        try:
            with self._making:
                if view == "toward":  # here the model runs, once
                    self._known_views.of(view, 0)
        except Error as error:
            raise PageError(f"{VIEWS[view].title}: {error}") from error
        with self._lock:
            if view not in self._views:
                self._views = {view: made}  # one at a time: each caches whole patterns
            return self._views[view]

    @property
    def is_causal(self) -> bool:
        """Whether each query sees exactly the keys up to itself, except for those that were cut."""
        if self.causal is not None:
            return self.causal
        return all(self.layer(layer).is_causal for layer in range(len(self.layers)))

    def layer(self, layer: int) -> Pattern:
        """Return all heads of a layer, ``(H, L, S)``; cached, as for `head`."""
        with self._lock:
            if layer not in self._layers:
                if self.objection is not None:
                    self._layers.clear()
                    self._heads.clear()
                    self._pending = PendingHeads()
                pattern = self.layers[layer].pattern
                self._layers[layer] = pattern[self.sequence] if pattern.ndim == 4 else pattern
            return self._layers[layer]

    def head(self, layer: int, head: int) -> Pattern | WeightedPattern:
        """Return one head, ``(L, S)``; cached, so that its log-sum-exps are computed once."""
        if self.base is not None:
            return self._viewed(self.base, layer, head)
        whole = self.layer(layer)
        with self._lock:
            known = self._heads.get((layer, head))
            if known is None or (whole.has_logsumexp and not known.has_logsumexp):
                known = self._heads[layer, head] = whole[head]
            return known

    def _viewed(self, base: Run, layer: int, head: int) -> Pattern | WeightedPattern:
        if self.view != "without":
            return self._known_views.of(self.view, layer, weights_of(base.head(layer, head)), head)
        # Which keys to leave out takes the whole head, and the rest has log-sum-exps of its own.
        with self._lock:
            known = self._heads.get((layer, head))
        if known is None:
            whole = weights_of(base.finished(layer, head, None))
            made = self._known_views.of(self.view, layer, whole, head)
            assert isinstance(made, Pattern), "weights without some keys are weights"
            with self._lock:
                known = self._heads.setdefault((layer, head), made)
        return known

    # Whether a request is fast, that is takes some tens of milliseconds

    def has_row(self, layer: int | str, head: int | str) -> bool:
        """Whether a row or a weight is fast; it needs no other rows."""
        few = len(self._places(layer, head)) * len(self.tokens) <= _LINES
        return few and self._is_here(layer, head)

    def _is_here(self, layer: int | str, head: int | str) -> bool:
        """Whether a pattern needs neither a run of the model nor a pass over all its weights."""
        if self.view == "without":
            return all(place in self._heads for place in self._places(layer, head))
        return self.objection is None or layer in self._layers

    def has_column(self, layer: int | str, head: int | str) -> bool:
        """Whether a column is fast; it needs the log-sum-exps of all rows."""
        return self.has_row(layer, head) and self._has_logsumexps(layer, head)

    def has_map(self, layer: int | str, head: int | str, window: Window) -> bool:
        """Whether a window is fast, see `map`: it is in the cache, or small."""
        if self._windows.hold(self._key(layer, head), len(self.tokens), window):
            return True
        area = (window.queries[1] - window.queries[0]) * (window.keys[1] - window.keys[0])
        few = len(self._places(layer, head)) * area <= _WINDOW
        return few and self._has_logsumexps(layer, head)

    def has_sketch(self, layer: int | str, head: int | str, block: int) -> bool:
        """Whether a sketch is fast, see `sketch`."""
        length = len(self.tokens)
        few = len(self._places(layer, head)) * -(-length // block) * length <= _SKETCH
        return few and self._is_here(layer, head)

    def _has_logsumexps(self, layer: int | str, head: int | str) -> bool:
        if not self._is_here(layer, head):
            return False
        heads = [weights_of(self.head(*place)) for place in self._places(layer, head)]
        return all(pattern.has_logsumexp for pattern in heads)

    def finished(
        self,
        layer: int,
        head: int,
        cancelled: Event | None,
        *,
        averaged: bool = False,
        along: bool = False,
    ) -> Pattern | WeightedPattern:
        """Return one head with its log-sum-exps, which are computed once.

        The same pass caches the down-sampled map, if `averaged`, and the readouts along the text,
        if `along`.
        """
        known = self._known(layer, head, cancelled, averaged=averaged, along=along)
        if known.cells is not None:
            self._windows.keep((layer, head), len(self.tokens), known.cells)
        return known.pattern

    def _known(
        self, layer: int, head: int, cancelled: Event | None, *, averaged: bool, along: bool
    ) -> KnownHead:
        """Return the head with its log-sum-exps, and the results of the pass that computed them."""
        seen = self.head(layer, head)
        if self.base is not None and isinstance(seen, WeightedPattern):
            self.base.finished(layer, head, cancelled)
            return KnownHead(self.head(layer, head), None, None)
        pattern = weights_of(seen)
        if pattern.has_logsumexp:
            return KnownHead(pattern, None, None)
        block = finest_block(len(self.tokens)) if averaged else None
        pending = self._pending.of((layer, head), pattern)
        known = pending.finish(cancelled, block, along=along)
        with self._lock:
            if known.along is not None:
                self._readouts[layer, head] = known.along
            self._heads[layer, head] = weights_of(known.pattern)
        self._pending.discard((layer, head))
        return known

    # Answers

    def scores(self, layer: int, cancelled: Event | None = None) -> dict[str, Any]:
        """Return the scores of each head of a layer, which are those of the weights."""
        if self.base is not None:
            return self.base.scores(layer, cancelled)
        if self.read:
            return for_json({"layer": layer, "heads": list(self.read[layer].scores)})
        if layer not in self._scores:
            scores = self._score(layer, cancelled)
            self._scores[layer] = for_json({"layer": layer, "heads": scores})
        return self._scores[layer]

    def _score(self, layer: int, cancelled: Event | None) -> list[dict[str, Any]]:
        """Score the heads of a layer: of a short text all at once, in an eighth of the time."""
        own, tokens = self.layers[layer], self.tokens
        places = range(len(own.heads))
        if len(places) * len(tokens) ** 2 <= _AT_ONCE:
            return scores_of(self.layer(layer), own, places, tokens, cancelled)
        scores = []
        for place in places:
            known = weights_of(self.finished(layer, place, cancelled))
            single = Pattern.of(replace(known.problem, leading=(1,)), known.logsumexp)
            scores += scores_of(single, own, [place], tokens, cancelled)
        return scores

    def thumbnails(self, layer: int, size: int, cancelled: Event | None = None) -> Tensor:
        """Return a thumbnail of each head of a layer, ``(H, rows, columns)``."""
        if self.read and size == PICTURE:
            return self.read[layer].pictures
        pictures = []
        for head in range(len(self.layers[layer].heads)):
            pattern = self.head(layer, head)
            if not fits_band(pattern):  # else the thumbnail is read in one pass with them
                pattern = self.finished(layer, head, cancelled)
            pictures.append(thumbnail(pattern, size, cancelled))
        return torch.stack(pictures)

    def map(self, layer: int | str, head: int | str, window: Window, cancelled: Event) -> Tensor:
        """Down-sample a window of a head or a mean to square cells, ``(rows, columns)``."""
        places, length = self._places(layer, head), len(self.tokens)
        if len(places) == 1:
            self.finished(*places[0], cancelled, averaged=True)
        key, average = self._key(layer, head), partial(self._average, places)
        return self._windows.read(key, length, average, window, cancelled)

    def _average(
        self, places: Sequence[tuple[int, int]], window: Window, cancelled: Event
    ) -> Tensor:
        """Down-sample a window of each head, and average over the heads."""
        whole, total = (0, len(self.tokens)), torch.zeros((), device="cpu")
        is_kept = window == Window(whole, whole, finest_block(len(self.tokens)))
        for place in places:
            known = self._known(*place, cancelled, averaged=is_kept, along=False)
            cells = known.cells
            if cells is None:
                cells = average_window(known.pattern, window, cancelled)
            total = total + cells.float()
        return total / len(places)

    def sketch(
        self, layer: int | str, head: int | str, block: int, cancelled: Event | None = None
    ) -> Tensor:
        """Approximate the whole map from the middle query of each block, while it is computed.

        The weights of these queries are averaged over blocks of keys, which needs only their own
        log-sum-exps.

        Returns:
            The mean over the heads, ``(⌈L / block⌉, ⌈S / block⌉)``.
        """
        length = len(self.tokens)
        middles = torch.arange(block // 2, length + block // 2, block, device="cpu")
        queries = middles.clamp(max=length - 1)
        cells: list[Tensor] = []
        for place in self._places(layer, head):
            require_wanted(cancelled)
            cells += self.head(*place).at(queries).read(Blocks(1, block))
        return torch.stack(cells).mean(0)

    def pattern(
        self,
        layer: int | str,
        head: int | str,
        cancelled: Event | None,
        progress: Callable[[int], None] | None = None,
    ) -> Pattern | WeightedPattern | MeanPattern:
        """Return a head, or the mean over the heads of a layer or of all, with log-sum-exps.

        The pass over a single head computes its map and readouts as well, since the page requests
        both.

        Args:
            layer: a layer, or `MEAN`.
            head: a head, or `MEAN`.
            cancelled: ends it early.
            progress: called with the number of heads whose log-sum-exps are known.
        """
        places, known = self._places(layer, head), []
        shown = len(places) == 1
        for number, place in enumerate(places, start=1):
            known.append(self.finished(*place, cancelled, averaged=shown, along=shown))
            if progress is not None:
                progress(number)
        return known[0] if shown else MeanPattern(known)

    def row(self, layer: int | str, head: int | str, query: int) -> Tensor:
        """Return the weights of a query, ``(S,)``."""
        weights: Tensor = self._single_row(layer, head, query)[0]
        return weights

    def column(
        self, layer: int | str, head: int | str, key: int, cancelled: Event | None = None
    ) -> Tensor:
        """Return the weights on a key, ``(L,)``."""
        weights: Tensor = self.pattern(layer, head, cancelled)[:, key]
        return weights

    def cell(self, layer: int | str, head: int | str, query: int, key: int) -> dict[str, Any]:
        """Return one entry with its score and log-sum-exp; a mean has neither."""
        row = self._single_row(layer, head, query)
        score = logsumexp = None
        if not isinstance(row, MeanPattern):
            problem = row.problem.crop(slice(0, 1), slice(key, key + 1))
            steps = dict(written_out(problem.cast(torch.float64)))
            score, logsumexp = float(steps["masked"].flatten()[0]), float(row.logsumexp[0])
        return for_json(
            {
                "weight": float(row[0, key]),
                "score": score,
                "logsumexp": logsumexp,
                "visible": row.sees(0, key) if score is None else score != -torch.inf,
            }
        )

    def _single_row(
        self, layer: int | str, head: int | str, query: int
    ) -> Pattern | WeightedPattern | MeanPattern:
        """Return one row, ``(1, S)``, without the log-sum-exps of other rows."""
        places = self._places(layer, head)
        found = [self.head(*place).crop((query, query + 1)) for place in places]
        return found[0] if len(found) == 1 else MeanPattern(found)

    def readouts(
        self,
        layer: int | str,
        head: int | str,
        cancelled: Event | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Tensor:
        """Return entropy, distance, weight on the first key and weight received, ``(4, L)``.

        They are cached, since those of a mean of many heads can take minutes.

        Args:
            layer: a layer, or `MEAN`.
            head: a head, or `MEAN`.
            cancelled: ends it early.
            progress: called with the number of rows that are done and the total; each row counts
                twice, for the log-sum-exps and for the readouts.
        """
        places, length = self._places(layer, head), len(self.tokens)
        count = len(places)
        key = self._key(layer, head)
        if key in self._readouts:
            return self._readouts[key]

        def report(rows: int) -> None:
            if progress is not None:
                progress(rows, 2 * count * length)

        pattern = self.pattern(layer, head, cancelled, lambda number: report(number * length))
        if key not in self._readouts:  # the pass for the log-sum-exps may have cached them
            self._readouts[key] = readouts_along(
                pattern, cancelled, lambda read: report((length + read) * count)
            )
        return self._readouts[key]

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
        """Return the steps of one query's attention; see `walk`."""
        values = None if self.values is None else self.values[layer][head]
        return for_json(
            walk(self.head(layer, head), values, query, first=first, count=count, picked=picked)
        )

    def _key(self, layer: int | str, head: int | str) -> tuple[int | str, int | str]:
        """Return the cache key of its map and readouts; a mean of one head is that head."""
        places = self._places(layer, head)
        return places[0] if len(places) == 1 else (layer, head)

    def _places(self, layer: int | str, head: int | str) -> list[tuple[int, int]]:
        """Return the (layer, head) pairs to average over."""
        if layer == MEAN and self.objection is not None:
            raise PageError(
                f"{self.objection}, so they are not kept, and no mean over all layers is computed: "
                "choose a layer"
            )
        layers = range(len(self.layers)) if layer == MEAN else [int(layer)]
        return [
            (number, place)
            for number in layers
            for place in (range(len(self.layers[number].heads)) if head == MEAN else [int(head)])
        ]
