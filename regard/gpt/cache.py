"""The keys and values of a GPT's earlier tokens, so that generation reads every token once.

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

    It belongs to the batch that it was first used with. Layers with a window keep no more than the
    window. A call of the model that fails or is interrupted leaves it as it was, or, where a window
    has evicted tokens meanwhile, inconsistent until it is reset. Hooks on the model itself are an
    exception.

    Args:
        config: the model's.
        capacity: most tokens; None is the model's context.
        padding: ``(B,)`` how many tokens at the start of each sequence are padding, so that
            sequences of unequal lengths end together; each gives what it gives alone.

    Attributes:
        layers: a `regard.nn.KVCache` a layer.

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
        """Tokens read so far, padding included."""
        return self.layers[0].length

    def positions(self, ids: Int[Tensor, "*b T"]) -> Int[Tensor, "*b T"]:
        """The positions of the next tokens: ``(T,)``, or ``(B, T)`` where there is padding.

        Raises:
            ValueError: they do not fit in.
        """
        new = ids.shape[-1]
        self.require_room(new)
        positions = torch.arange(self.length, self.length + new, device=ids.device)
        padding = self.layers[0].padding
        return positions if padding is None else (positions - padding[:, None]).clamp(min=0)

    def require_room(self, new: int) -> None:
        """Raise ValueError if so many more tokens do not fit."""
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
        """Drop what an interrupted call added, perhaps to some layers only; see `KVCache.rollback`.

        Args:
            length: how many tokens there were before.
        """
        for layer in self.layers:
            layer.rollback(length)

    def check_mask(self, mask: Mask, ids: Int[Tensor, "*b T"], heads: int) -> None:
        """Check the mask of a call, before any key or value is stored.

        Args:
            mask: the mask, of all tokens.
            ids: the new tokens.
            heads: of the model.

        Raises:
            ValueError: it does not fit, or a layer has evicted tokens by then.
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
            capacity: most tokens of each copy, those of this cache included.

        Raises:
            ValueError: this cache holds several sequences, or `capacity` is below its length.
        """
        branch = copy(self)
        branch.layers = tuple(layer.branch(copies, capacity) for layer in self.layers)
        return branch

    def reset(self, *, padding: Int[Tensor, "B"] | None = None) -> None:
        """Empty the cache but keep its memory, for as many sequences with this padding."""
        for layer in self.layers:
            layer.reset(padding=padding)
