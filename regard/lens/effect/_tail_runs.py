"""Runs over the last tokens of a text, after those before them were read once.

Axes: T tokens, A rows that are wanted, V vocabulary.
"""

from __future__ import annotations

import sys
from copy import deepcopy
from typing import Any

from torch import Tensor, nn

from regard._modules import unwrapped
from regard._shapes import Float, Int
from regard.intercept import last_logits

__all__ = ["TailRuns"]


class TailRuns:
    """Runs a model over the last tokens of a text again and again.

    A model of transformers reads the tokens before them once, and keeps their keys and values;
    any other model reads the whole text each time.

    Args:
        model: a causal language model.
        ids: the text, ``(1, T)``.
        start: the first of the last tokens.
        keeps_logits: what `takes_logits_to_keep` says of the model.

    Raises:
        ValueError: for an encoder-decoder.
    """

    def __init__(
        self, model: nn.Module, ids: Int[Tensor, "1 T"], start: int, *, keeps_logits: bool
    ) -> None:
        self._model, self._ids, self._start = model, ids, 0
        if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
            raise ValueError(
                f"model: {type(model).__name__} reads the context in an encoder; give a causal "
                "language model"
            )
        self._keeps_logits = keeps_logits
        self._cache = _full_cache(unwrapped(model)) if start > 0 else None
        if self._cache is not None:
            options = {"past_key_values": self._cache, "use_cache": True, **self._keep(1)}
            model(ids[:, :start], **options)
            self._start = start

    def logits(self, count: int) -> Float[Tensor, "A V"]:
        """The logits of the text's last tokens, under the changes that are stated."""
        options = self._keep(count)
        if self._cache is not None:
            options |= {"past_key_values": deepcopy(self._cache), "use_cache": True}
        output = self._model(self._ids[:, self._start :], **options)
        logits: Tensor = getattr(output, "logits", output)
        return logits[0, -count:]

    def _keep(self, count: int) -> dict[str, Any]:
        """Have a model compute no more logits than are wanted."""
        return last_logits(count) if self._keeps_logits else {}


def _full_cache(model: nn.Module) -> Any:
    """A cache of all keys, also in layers with a window: keys are numbered over the whole text.

    None for a model that is not of transformers, and for one with layers of another kind, which
    need a cache of their own.
    """
    if "transformers" not in sys.modules:
        return None
    from transformers import DynamicCache, PreTrainedModel
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    if not isinstance(model, PreTrainedModel):
        return None
    planned = DynamicCache(config=model.config).layers
    if any(type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer) for layer in planned):
        return None
    return DynamicCache()
