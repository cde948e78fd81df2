"""A key/value cache, with which each new token costs the work of one token.

Axes: B batch, G key/value heads, L new positions, S stored positions, D head dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from regard import _huge_pages
from regard._arguments import check_whole
from regard._contexts import are_plain, is_transformed
from regard._shapes import Float, Int
from regard.masks import Mask, intervals

__all__ = ["KVCache", "rollback_on_error"]

# The cache uses huge pages, where the system has them, if a head's first keys have this many bytes,
# since every token reads all of it. Each head may waste part of a page; deciding by the capacity
# would waste one page per head for a short text with a large capacity.
_MIN_FIRST_BYTES = 2 * _huge_pages.PAGE


class KVCache:
    """The keys and values of one attention layer, in memory that is allocated once.

    The memory is allocated when the first keys arrive, for `capacity` positions, or with a sliding
    window for at most twice the window. After that, adding a position moves no others, except that
    once every W positions the newest W − 1 are moved to the front. `append` returns views in the
    order of positions, so masks remain intervals.

    Args:
        capacity: maximum number of positions, evicted ones included.
        window: W, if queries see at most the last W positions, their own included, as with
            `regard.window`; earlier ones are evicted. None keeps everything.
        padding: ``(B,)``, number of padding positions at the start of each sequence; None for none.

    Attributes:
        length: positions added so far, padding and evicted ones included.
        is_incomplete: True if positions were lost and the cache must be reset; see `rollback`.

    Raises:
        ValueError: if capacity or window is below 1.

    Example:
        >>> import regard, torch
        >>> from regard.nn import KVCache, MultiHeadAttention
        >>> layer = MultiHeadAttention(12, 3, mask=regard.causal()).eval()
        >>> x, cache = torch.randn(2, 5, 12), KVCache(5)
        >>> parts = [layer(part, cache=cache) for part in (x[:, :3], x[:, 3:4], x[:, 4:])]
        >>> torch.allclose(torch.cat(parts, dim=1), layer(x), atol=1e-6)
        True
    """

    def __init__(
        self, capacity: int, *, window: int | None = None, padding: Int[Tensor, "B"] | None = None
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}; expected room for 1 position or more")
        if window is not None and window < 1:
            raise ValueError(f"window is {window}; expected 1 or more, or None")
        self.capacity = capacity
        self.window = window
        self.padding = padding
        self.length = 0
        self.is_incomplete = False
        self._room = capacity if window is None else min(capacity, 2 * window)
        self._stored = 0
        self._memory: tuple[Tensor, Tensor] | None = None

    @property
    def memory(self) -> tuple[Tensor, Tensor] | None:
        """Buffers of keys ``(B, G, N, D)`` and values for N positions; None before the first."""
        return self._memory

    def extend(self) -> int:
        """Reserve room for one more position after `append`; the caller writes its key and value.

        Returns:
            Number of rows of `memory` in use; the last one is that of the new position.

        Raises:
            ValueError: if the cache is full, inconsistent or still empty.
        """
        if self._memory is None:
            raise ValueError("the cache is empty; append a key and a value first")
        self._require_room(1)
        if self._stored == self._room:
            self._evict()
        self.length, self._stored = self.length + 1, self._stored + 1
        return self._stored

    def append(
        self, key: Float[Tensor, "*b G L D"], value: Float[Tensor, "*b G L Dv"]
    ) -> tuple[Float[Tensor, "*b G S D"], Float[Tensor, "*b G S Dv"]]:
        """Add the keys and values of the next positions.

        Args:
            key: ``(B, G, L, D)``.
            value: ``(B, G, L, Dv)``.

        Returns:
            All keys and values that the new queries may see: views that the next call may mutate.

        Raises:
            ValueError: if they do not fit, or differ in shape, dtype or device from earlier ones.
        """
        new = key.shape[-2]
        self._require_room(new)
        if self._memory is None:
            self._memory = (self._empty(key), self._empty(value))
        memory = self._memory
        self._check(memory, (key, value))
        if self._stored + new > self._room:  # only with a window: the capacity was checked above
            kept = self._evict()
            if kept + new > self._room:
                return self._append_beyond(memory, key, value)
        for tensor, added in ((memory[0], key), (memory[1], value)):
            tensor.narrow(-2, self._stored, new).copy_(added)
        self.length, self._stored = self.length + new, self._stored + new
        return memory[0].narrow(-2, 0, self._stored), memory[1].narrow(-2, 0, self._stored)

    def keys_after(self, new: int) -> int:
        """Return the number of keys that `append` would return, evicted ones excluded.

        Args:
            new: L.

        Raises:
            ValueError: if they do not fit.
        """
        self._require_room(new)
        if self._stored + new <= self._room:
            return self._stored + new
        return self._seen_by_next() + new

    def hide_padding(self, mask: Mask, queries: int, keys: int) -> Mask:
        """Hide the padding from the newest queries of a layer.

        Args:
            mask: the layer's mask, in which no query sees a later key.
            queries: L of the last `append`.
            keys: S of its result.
        """
        if self.padding is None:
            return mask
        evicted = self.length - keys
        start = (self.padding - evicted).clamp(min=0)[:, None].expand(-1, queries)  # (B, L)
        return mask & intervals(start, torch.full_like(start, keys))

    def truncate(self, length: int) -> None:
        """Remove the newest positions.

        Args:
            length: number of positions that remain, evicted ones included.

        Raises:
            ValueError: if the cache holds fewer, or has evicted keys that the next query would see.
            TypeError: if length is not a whole number.
        """
        check_whole(length, "length")
        if not 0 <= length <= self.length:
            raise ValueError(
                f"length is {length}; expected 0 to {self.length}, the length of the cache"
            )
        stored = self._stored - (self.length - length)
        if stored < (length if self.window is None else min(length, self.window - 1)):
            raise ValueError(
                f"length is {length}, of {self.length} positions, but with window={self.window} "
                "keys that the next query would see were evicted; call cache.reset() and run the "
                "whole sequence again"
            )
        self.length, self._stored = length, stored

    def rollback(self, length: int) -> None:
        """Remove what an interrupted call added.

        If positions that are still needed were evicted, the cache is inconsistent, and further
        calls raise an error until `reset`.

        Args:
            length: number of positions before that call.
        """
        if length == 0:
            self._memory = None  # the next call may have another batch size
        try:
            self.truncate(length)
        except ValueError:
            self.is_incomplete = True

    def reset(self, *, padding: Int[Tensor, "B"] | None = None) -> None:
        """Empty the cache and set the padding of the next sequences; the memory is kept."""
        self.length = self._stored = 0
        self.padding = padding
        self.is_incomplete = False

    def branch(self, copies: int, capacity: int) -> KVCache:
        """Copy the cache's only sequence into a batch, whose copies can be continued separately.

        Args:
            copies: the size of the new batch.
            capacity: maximum number of positions of each copy, those of this cache included.

        Raises:
            ValueError: if this cache holds several sequences, or for a capacity below its length.
        """
        if capacity < self.length:
            raise ValueError(f"capacity is {capacity}; the cache holds {self.length} positions")
        padding = None if self.padding is None else self.padding.expand(copies)
        branch = KVCache(capacity, window=self.window, padding=padding)
        if self._memory is None:
            return branch
        if self._memory[0].shape[0] != 1:
            raise ValueError(
                f"the cache holds {self._memory[0].shape[0]} sequences; expected one to copy"
            )
        branch.length, branch._stored = self.length, self._stored
        kept = [tensor.narrow(-2, 0, self._stored) for tensor in self._memory]
        key, value = (branch._empty(tensor.expand(copies, *tensor.shape[1:])) for tensor in kept)
        for tensor, before in zip((key, value), kept, strict=True):
            tensor.narrow(-2, 0, self._stored).copy_(before)
        branch._memory = key, value
        return branch

    def _require_room(self, new: int) -> None:
        if self.is_incomplete:
            raise ValueError(
                "the cache is inconsistent: a previous forward was interrupted; call "
                "cache.reset() and run the whole sequence again"
            )
        if self.length + new > self.capacity:
            raise ValueError(
                f"the cache holds {self.length} of at most {self.capacity} positions, and {new} "
                "more do not fit; make it with a larger capacity"
            )

    def _empty(self, like: Tensor) -> Tensor:
        """Allocate the buffer for keys or values like these."""
        shape = (*like.shape[:-2], self._room, like.shape[-1])
        if not is_transformed() and are_plain(like):
            of_a_head = like.shape[-2] * like.shape[-1] * like.itemsize
            if of_a_head >= _MIN_FIRST_BYTES:
                return _huge_pages.allocate((shape, like.dtype))[0]
        return like.new_empty(shape)

    def _evict(self) -> int:
        """Move the positions that a new query may see to the front; return their number."""
        assert self._memory is not None, "positions have been stored"
        kept, stored = self._seen_by_next(), self._stored
        self._stored = 0  # if the copy is interrupted, nothing is valid
        for tensor in self._memory:
            tensor[..., :kept, :] = tensor[..., stored - kept : stored, :].clone()
        self._stored = kept
        return kept

    def _seen_by_next(self) -> int:
        """Return how many stored positions the next query sees; only with a window."""
        assert self.window is not None, "without a window the room is the capacity"
        return min(self._stored, self.window - 1)

    def _append_beyond(
        self, memory: tuple[Tensor, Tensor], key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Append more positions than fit: return all of them, and store the newest."""
        assert self.window is not None, "without a window the room is the capacity"
        whole = [
            torch.cat([tensor[..., : self._stored, :], added], dim=-2)
            for tensor, added in zip(memory, (key, value), strict=True)
        ]
        kept, self._stored = min(whole[0].shape[-2], self.window - 1), 0  # as in `_evict`
        for tensor, positions in zip(memory, whole, strict=True):
            tensor[..., :kept, :] = positions[..., positions.shape[-2] - kept :, :]
        self.length, self._stored = self.length + key.shape[-2], kept
        return whole[0], whole[1]

    def _check(self, memory: tuple[Tensor, Tensor], added: tuple[Tensor, Tensor]) -> None:
        for name, kept, new in zip(("key", "value"), memory, added, strict=True):
            shape = (*kept.shape[:-2], new.shape[-2], kept.shape[-1])
            if new.shape != shape or new.dtype != kept.dtype or new.device != kept.device:
                raise ValueError(
                    f"{name} is {tuple(new.shape)} of {new.dtype} on {new.device}, but the cache "
                    f"expects {shape} of {kept.dtype} on {kept.device}; use one cache for each "
                    "layer and batch"
                )
        if added[0].shape[-2] != added[1].shape[-2]:
            raise ValueError(
                f"key has {added[0].shape[-2]} positions and value {added[1].shape[-2]}; "
                "they must be the same"
            )


@runtime_checkable
class _Cache(Protocol):
    """A cache for one layer or several."""

    @property
    def length(self) -> int: ...
    def rollback(self, length: int) -> None: ...


def rollback_on_error(cache: _Cache | None) -> AbstractContextManager[None]:
    """Roll back the cache if the block, which adds positions, raises or is interrupted."""
    return nullcontext() if cache is None else _rollback_on_error(cache)


@contextmanager
def _rollback_on_error(cache: _Cache) -> Iterator[None]:
    length = cache.length
    try:
        yield
    except BaseException:
        cache.rollback(length)
        raise
