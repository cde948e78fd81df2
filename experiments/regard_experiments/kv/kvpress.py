"""Presses of `kvpress` that score on any attention implementation, and write no weights down.

``kvpress.ObservedAttentionPress`` needs ``attn_implementation="eager"``, which stores every
layer's L × S weights; the others write out those of the last queries, or of a whole text read
twice. The presses here are theirs, with scores that are read of patterns: of the same name, with
the same arguments, in the place of theirs wherever `kvpress` takes one.

Where a press scores exact weights, so do these, and they keep the same positions, up to keys whose
scores differ by less than rounding; in half precision theirs round the weights first.
`regard_experiments.kv.cache_scores` says what is computed, and how it differs from the papers.

It is installed by ``pip install 'kvpress<0.6'``, and needs transformers < 5.3; the extra
``transformers`` needs 5.5, so that there are not both in one environment. Models that call SDPA can
be recorded, and compared by `regard.lens.fidelity`, with either.

Axes: B batch, H query heads, G key/value heads, T tokens, S keys, D head dimension, E width.
"""

from __future__ import annotations

from typing import Any

import kvpress
import torch
from torch import Tensor

from regard._shapes import Float
from regard.masks import causal
from regard.pattern import Pattern
from regard.pattern.readouts import Received
from regard_experiments.kv import cache_scores
from regard_experiments.kv._layer_pattern import layer_pattern, layer_queries, layer_scoring

__all__ = ["KVzipPress", "ObservedAttentionPress", "SnapKVPress", "TOVAPress"]


class _PatternScores:
    """Scores of a layer's pattern, in the place of a press's own."""

    _last: int | None = None
    """How many of the last queries are scored by; None is all of them."""

    def score(
        self,
        module: Any,
        hidden_states: Float[Tensor, "B T E"],
        keys: Float[Tensor, "B G S D"],
        values: Float[Tensor, "B G S D"],  # noqa: ARG002 - kvpress's signature
        attentions: Tensor | None,  # noqa: ARG002 - likewise
        kwargs: dict[str, Any],
    ) -> Float[Tensor, "B G S"]:
        """Score the keys of a layer.

        Raises:
            ValueError: if keys were evicted before, for a part of a text, for numbers that do not
                fit it, and for a layer whose keys are computed in a way that is not known.
            TypeError: for one without the modules that project to queries.
        """
        return self._scores(layer_pattern(module, hidden_states, keys, kwargs, last=self._last))

    def _scores(self, pattern: Pattern) -> Float[Tensor, "B G S"]:
        raise NotImplementedError


class ObservedAttentionPress(_PatternScores, kvpress.ObservedAttentionPress):
    """Keeps the keys with most weight from the queries after them, on average.

    Args:
        compression_ratio: share of the keys to evict, 0 for none.
    """

    def _scores(self, pattern: Pattern) -> Float[Tensor, "B G S"]:
        return cache_scores.observed_attention(pattern)


class SnapKVPress(_PatternScores, kvpress.SnapKVPress):
    """Keeps the keys with most weight from the last queries, and those queries' own.

    Args:
        compression_ratio: share of the keys to evict, 0 for none.
        window_size: how many queries.
        kernel_size: how many neighbouring keys share their scores, odd.
    """

    @property
    def _last(self) -> int:  # type: ignore[override] # an option that may change, as kvpress has it
        return self.window_size

    def _scores(self, pattern: Pattern) -> Float[Tensor, "B G S"]:
        return cache_scores.snapkv(pattern, self.window_size, self.kernel_size)


class TOVAPress(_PatternScores, kvpress.TOVAPress):
    """Keeps the keys with most weight from the last query, over all heads, and that query's own.

    Args:
        compression_ratio: share of the keys to evict, 0 for none.
    """

    _last = 1

    def _scores(self, pattern: Pattern) -> Float[Tensor, "B G S"]:
        return cache_scores.tova(pattern)


class KVzipPress(kvpress.KVzipPress):
    """Keeps the keys that are needed most where the model repeats its text.

    The weights are those over the first ``n_sink`` keys, the chunk and the repetition, as in
    `kvpress`: not over the whole cache. Its press evicts by hiding keys, which no eager attention
    of `transformers` does.

    Args:
        compression_ratio: share of the keys to evict, 0 for none.
        layerwise: evict as many of each layer.
        n_sink: how many of the first keys are kept.
        kvzip_plus_normalization: divide the weights by the norm of the layer's input at the query,
            and multiply them by that of the value after the output projection.
        chunk_size: tokens that are repeated at a time.
    """

    def score_kvzip(
        self,
        module: Any,
        hidden_states: Float[Tensor, "B T E"],
        keys: Float[Tensor, "B G S D"],
        values: Float[Tensor, "B G S D"],
        attentions: Tensor | None,  # noqa: ARG002 - kvpress's signature
        kwargs: dict[str, Any],
    ) -> tuple[Float[Tensor, "B G s D"], Float[Tensor, "B G s D"]]:
        """Score a chunk by `cache_scores.kvzip`, and cut its repetition off the cache."""
        sinks = min(self.n_sink, self.start_idx)
        chunk = slice(sinks, sinks + self.end_idx - self.start_idx)
        own = hidden_states.shape[1]

        def compared(cached: Tensor) -> Tensor:
            parts = slice(sinks), slice(self.start_idx, self.end_idx), slice(-own, None)
            return torch.cat([cached[:, :, part] for part in parts], dim=2)

        query = layer_queries(module, hidden_states, kwargs["position_embeddings"])
        pattern = Pattern(query, compared(keys), **layer_scoring(module, causal()))
        if self.kvzip_plus_normalization:
            scores = self._normalized(pattern, module, hidden_states, compared(values))
        else:
            scores = cache_scores.kvzip(pattern)
        of_layer = self.score_val[int(module.layer_idx)]
        of_layer[..., self.start_idx : self.end_idx] = scores[..., chunk]
        return keys[:, :, : self.context_length], values[:, :, : self.context_length]

    def _normalized(
        self, pattern: Pattern, module: Any, hidden_states: Tensor, values: Tensor
    ) -> Float[Tensor, "B G S"]:
        # What a row is divided by adds its logarithm to the row's log-sum-exp.
        lengths = hidden_states.to(pattern.dtype).norm(dim=-1).log()[:, None]
        divided = Pattern.of(pattern.problem, pattern.logsumexp + lengths)
        (most,) = divided.read(Received("max"))
        lengths = self._compute_value_output_norm(module, values)  # (B, G, H / G, S)
        return (most.unflatten(1, lengths.shape[1:3]) * lengths).amax(dim=2)
