"""Keys out of vLLM's paged cache.

A block of the cache of vLLM's CPU attention, ``(G, block, 2·D)``, holds the keys of its positions
in its first half, in an order that depends on the processor and the dtype. The order is not assumed
here: numbers are written to a block of the same shape by the attention's own function, and found
again.

Axes: G key/value heads, S keys, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard import Error

_PLAIN = (torch.float32, torch.bfloat16, torch.float16)
# Digits that any floating-point type holds exactly.
_BASE = 128


class KeyLayout:
    """The order of keys in a block.

    Args:
        implementation: the attention's, which writes keys into a cache.
        layer: the attention layer, which that takes too.
        cache: the layer's cache, ``(blocks, G, block, 2·D)``.

    Raises:
        Error: if keys are not written number by number.
    """

    def __init__(self, implementation: Any, layer: Any, cache: Tensor) -> None:
        if cache.dtype not in _PLAIN:
            raise Error(_unknown(implementation))
        _, groups, self._block, width = cache.shape
        self._size = width // 2
        numbers = self._block * self._size
        codes = torch.arange(numbers, device=cache.device)
        read = torch.zeros_like(codes)
        base = 1
        while base < numbers:
            block = cache.new_zeros(1, *cache.shape[1:])
            digits = (codes // base % _BASE).to(cache.dtype).reshape(self._block, 1, self._size)
            keys = digits.expand(-1, groups, -1).contiguous()
            implementation.do_kv_cache_update(
                layer, keys, torch.zeros_like(keys), block, codes[: self._block]
            )
            halves = block.reshape(groups, 2, numbers)
            if (
                not torch.equal(halves[:, 0], halves[:1, 0].expand(groups, -1))
                or halves[:, 1].any()
            ):
                raise Error(_unknown(implementation))
            read += halves[0, 0].long() * base
            base *= _BASE
        self._place = torch.empty_like(codes)
        if not torch.equal(read.sort().values, codes):
            raise Error(_unknown(implementation))
        self._place[read] = codes

    def keys(self, cache: Tensor, blocks: Tensor, count: int, heads: Sequence[int]) -> Tensor:
        """Copy the first keys of blocks, ``(len(heads), count, D)``.

        Args:
            cache: the layer's cache.
            blocks: numbers of the blocks, in the order of their positions.
            count: how many keys.
            heads: numbers of key heads, of which some may come more than once.
        """
        numbers = self._block * self._size
        halves = cache.view(*cache.shape[:2], 2 * numbers)[..., :numbers]
        index = torch.tensor(heads, device=cache.device)
        own = halves[blocks.long()[:, None], index[None]]  # (blocks, heads, numbers)
        keys = own[..., self._place].unflatten(-1, (self._block, self._size))
        return keys.transpose(0, 1).flatten(1, 2)[:, :count]

    @property
    def block(self) -> int:
        """Positions of a block."""
        return self._block


def _unknown(implementation: Any) -> str:
    return (
        f"{type(implementation).__name__} does not write keys into the cache as they are, such as "
        "one of 8 bits; serve the model with kv_cache_dtype='auto'"
    )
