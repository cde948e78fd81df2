"""What a step of an engine keeps for readouts, and the readouts that are taken of it.

The step computes the scores of every head anyway: they are kept, so that a readout reads no keys.

Axes: B batch, N layers, H heads, S keys, D head dimension.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from regard._shapes import Float
from regard.gpt.cache import GPTCache
from regard.gpt.config import GPTConfig
from regard.inputs import Scoring, check
from regard.masks import intervals
from regard.pattern import Pattern
from regard.pattern.reading import take
from regard.pattern.readout import Readout, Sizes
from regard.pattern.readouts import MaxScore


class StepReadings:
    """Buffers that a step fills, and readouts of the last token's patterns.

    Args:
        config: the model's configuration.
        cache: its cache, with memory.
        batch: the dimensions before the heads, ``(B,)`` or none.
        dtype: of the model.
        readouts: what is read; without any nothing is kept.

    Attributes:
        scores: for each layer a buffer ``(B, H, room)`` for masked scores, or None.
        queries: for each layer one ``(B, H, D)`` for queries, or None.
    """

    def __init__(
        self,
        config: GPTConfig,
        cache: GPTCache,
        batch: Sequence[int],
        dtype: torch.dtype,
        readouts: Sequence[Readout[Any, Any]],
    ) -> None:
        self._config, self._readouts = config, tuple(readouts)
        self.scores: list[Tensor | None] = [None] * config.layers
        self.queries: list[Tensor | None] = [None] * config.layers
        self._of_window: list[tuple[list[int], Tensor]] = []
        heads = *batch, config.heads
        if not readouts:
            return
        # What somebody wrote may be of anything, and a largest score is one before softcap.
        if not all(one.has_kernel and not isinstance(one, MaxScore) for one in readouts):
            shape = (config.layers, *heads, config.head_dim)
            self.queries = list(torch.empty(shape, dtype=dtype, device="cpu"))
            return
        for window in {layer.window for layer in cache.layers}:
            layers = [n for n, layer in enumerate(cache.layers) if layer.window == window]
            memory = cache.layers[layers[0]].memory
            assert memory is not None, "the cache has keys"
            scores = torch.empty(len(layers), *heads, memory[0].shape[-2], device="cpu")
            self._of_window.append((layers, scores))
            for layer, own in zip(layers, scores, strict=True):
                self.scores[layer] = own

    def read(
        self, cache: GPTCache, stored: Sequence[tuple[int, int]]
    ) -> tuple[tuple[Any, ...], ...]:
        """Take the readouts of the last token's pattern in each layer.

        Args:
            cache: the cache after the step.
            stored: for each layer, the numbers of keys cached after the step and evicted before it.
        """
        if not self._of_window:
            patterns = (self._pattern(n, cache, *stored[n]) for n in range(len(stored)))
            return tuple(pattern.read(*self._readouts) for pattern in patterns)
        results: dict[int, tuple[Any, ...]] = {}
        for layers, scores in self._of_window:
            count, _ = stored[layers[0]]
            seen = scores[..., _first_seen(cache, layers[0], count) : count]
            results.update(zip(layers, _by_layer(self._take(seen)), strict=True))
        return tuple(results[layer] for layer in range(len(stored)))

    def _take(self, scores: Float[Tensor, "N *b H S"]) -> tuple[Any, ...]:
        """Take the readouts of several layers in one pass.

        To the kernels the scores are the bias of queries 0, whose heads share keys: then the rows
        of a block are of any layer.
        """
        config, keys = self._config, scores.shape[-1]
        rows = scores.flatten(0, -2)[:, None]
        zero = scores.new_zeros(1, 1, 1)
        query, key = zero.expand(len(rows), 1, 1), zero.expand(1, keys, 1)
        group = config.heads // config.group_count
        sizes = Sizes(tuple(scores.shape[:-1]), 1, keys, scores.dtype, scores.device, group)
        return take(self._readouts, check(query, key, scoring=Scoring(bias=rows)), sizes)

    def _pattern(self, layer: int, cache: GPTCache, count: int, evicted: int) -> Pattern:
        """The pattern of the last token in a layer, ``(B, H, 1, S)``."""
        own, query = cache.layers[layer], self.queries[layer]
        assert own.memory is not None, "the cache has keys"
        assert query is not None, "they were kept"
        start, mask = _first_seen(cache, layer, count), None
        if own.padding is not None:
            hidden = (own.padding - evicted - start).clamp_min(0)[:, None]
            mask = intervals(hidden, torch.full_like(hidden, count - start))
        scoring: dict[str, Any] = {
            "scale": self._config.score_scale,
            "softcap": self._config.score_softcap,
        }
        keys = own.memory[0][..., start:count, :]
        return Pattern(query[..., None, :], keys, mask=mask, **scoring)


def _first_seen(cache: GPTCache, layer: int, count: int) -> int:
    """The first of so many stored keys that the last token may see."""
    window = cache.layers[layer].window
    return 0 if window is None else max(0, count - window)


def _by_layer(result: Any) -> Iterable[Any]:
    """Divide results of several layers: a tensor, or a tuple, maybe with names, of them."""
    if not isinstance(result, tuple):
        return iter(result.unbind())
    make = getattr(type(result), "_make", tuple)
    return map(make, zip(*map(_by_layer, result), strict=True))
