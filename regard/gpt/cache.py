"""The KV cache of a GPT, with which generation reads every token once.

Axis letters: B batch, T tokens.
"""

from __future__ import annotations

from copy import copy
from typing import Self

import torch
from torch import Tensor

from regard._shapes import Int
from regard.gpt.config import GPTConfig
from regard.masks import Mask
from regard.nn import KVCache


class GPTCache:
    """The keys and values of all layers, and the position of the next token.

    It can only be used with the batch of its first call. Layers with a window keep only the window.
    If a call of the model fails or is interrupted, the cache is rolled back or, if a window has
    evicted tokens meanwhile, inconsistent until it is reset. Errors in hooks on the model itself
    are not rolled back.

    Args:
        config: the model's configuration.
        capacity: maximum number of tokens; None is the model's context.
        padding: ``(B,)``, number of padding tokens at the start of each sequence, which align the
            ends of sequences of unequal lengths; results are those of each sequence alone.

    Attributes:
        layers: a `regard.nn.KVCache` per layer.

    Raises:
        ValueError: `capacity` is below 1 or above the model's context.

    >>> from regard.gpt import load
    >>> model, tokenizer = load()
    >>> ids, cache = torch.tensor(tokenizer.encode("The cat sat on")), GPTCache(model.config)
    >>> parts = model(ids[:2], cache=cache), model(ids[2:], cache=cache)
    >>> torch.allclose(torch.cat(parts), model(ids), atol=1e-4)
    True
    """

    def __init__(
        self,
        config: GPTConfig,
        *,
        capacity: int | None = None,
        padding: Int[Tensor, "B"] | None = None,
    ) -> None:
        capacity = config.context if capacity is None else capacity
        if not 1 <= capacity <= config.context:
            raise ValueError(
                f"capacity is {capacity}; expected 1 to {config.context}, the model's context"
            )
        self.layers = tuple(
            KVCache(capacity, window=config.layer_window(layer), padding=padding)
            for layer in range(config.layers)
        )

    @property
    def length(self) -> int:
        """Return the number of tokens read so far, padding included."""
        return self.layers[0].length

    def positions(self, ids: Int[Tensor, "*b T"]) -> Int[Tensor, "*b T"]:
        """Return the positions of the next tokens: ``(T,)``, or ``(B, T)`` where there is padding.

        Raises:
            ValueError: if they do not fit.
        """
        new = ids.shape[-1]
        self.require_room(new)
        positions = torch.arange(self.length, self.length + new, device=ids.device)
        padding = self.layers[0].padding
        return positions if padding is None else (positions - padding[:, None]).clamp(min=0)

    def require_room(self, new: int) -> None:
        """Raise ValueError if `new` more tokens do not fit."""
        if any(layer.is_incomplete for layer in self.layers):
            raise ValueError(
                "the cache is inconsistent: a previous forward was interrupted; call "
                "cache.reset() and read the text again"
            )
        length, capacity = self.length, self.layers[0].capacity
        if length + new > capacity:
            raise ValueError(
                f"the cache holds {length} of at most {capacity} tokens, and ids has {new} more; "
                "keep fewer, or start again with the last of them"
            )

    def rollback(self, length: int) -> None:
        """Remove what an interrupted call added, maybe to some layers; see `KVCache.rollback`.

        Args:
            length: number of tokens before the call.
        """
        for layer in self.layers:
            layer.rollback(length)

    def check_mask(self, mask: Mask, ids: Int[Tensor, "*b T"], heads: int) -> None:
        """Check the mask of a call, before any key or value is stored.

        Args:
            mask: the mask over all tokens.
            ids: the new tokens.
            heads: number of heads.

        Raises:
            ValueError: if it does not fit, or a layer has evicted tokens.
        """
        new = ids.shape[-1]
        mask.resolve((*ids.shape[:-1], heads), new, self.length + new, ids.device)
        for layer, cache in enumerate(self.layers):
            if cache.keys_after(new) < self.length + new:
                raise ValueError(
                    f"a mask names tokens by their position, and layer {layer}, whose window is "
                    f"{cache.window}, no longer keeps all {self.length + new}; pass no mask, or "
                    "the whole text without a cache"
                )

    def branch(self, copies: int, capacity: int) -> Self:
        """Copy the cache's only sequence into a batch, whose copies can be continued separately.

        Args:
            copies: the size of the new batch.
            capacity: maximum number of tokens of each copy, those of this cache included.

        Raises:
            ValueError: if this cache holds several sequences, or `capacity` is below its length.
        """
        branch = copy(self)
        branch.layers = tuple(layer.branch(copies, capacity) for layer in self.layers)
        return branch

    def reset(self, *, padding: Int[Tensor, "B"] | None = None) -> None:
        """Empty the cache and set the padding of the next sequences; the memory is kept."""
        for layer in self.layers:
            layer.reset(padding=padding)
