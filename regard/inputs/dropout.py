"""Dropout masks: a pure function of a seed and of a weight's position.

The generator is counter-based. Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy
as 1, 2, 3", https://doi.org/10.1145/2063384.2063405, section 3.3) turns a counter of four 32-bit
words, under a key of two, into four random words. The counter identifies four adjacent weights, and
the key is the seed. So any part of a pattern, in any order and by any backend, has the same mask.

Axes: B batch, H query heads, l queries and s keys of a block, q groups of four keys.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard._shapes import Bool, Int
from regard._tensors import upload

Words = tuple[Tensor, Tensor, Tensor, Tensor]

_ROUNDS = 10
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85  # added to the key's words after each round
_MASK = 2**32 - 1
# 2¹⁷ words are 1 MiB, so the result of one round is still in the cache when the next one reads it.
# The words of a whole pattern at once would take several times the memory of its weights.
_COUNTERS = 2**17


def draw_seed(generator: torch.Generator | None) -> Int[Tensor, "2"]:
    """Draw a seed; None means torch's global CPU generator, for every device.

    The seed remains a tensor, so that a compiled graph draws a new one at each run and
    `torch.func.vmap` can draw one for each entry.

    Returns:
        The seed's two words of 32 bits, the low one first.
    """
    device = torch.device("cpu") if generator is None else generator.device
    return torch.randint(2**32, (2,), generator=generator, device=device)


def keep_mask(
    seed: Int[Tensor, "2"],
    dropout: float,
    heads: tuple[int, int],
    rows: slice,
    columns: slice,
    device: torch.device,
) -> Bool[Tensor, "B H l s"]:
    """Compute a block of the dropout mask for every head: True if the weight is kept.

    The weight of head b·H + h, query i and key j is kept where word j mod 4 of the counter
    (j div 4, i, b·H + h, 0) is at least dropout · 2³².

    Args:
        seed: as returned by `draw_seed`; the low word is the first of Philox's key.
        dropout: probability of zeroing a weight.
        heads: (B, H) of the whole problem.
        rows: queries of the block, as indices of the whole problem.
        columns: keys of the block, likewise.
        device: device of the result.
    """
    first = columns.start // 4
    fours = torch.arange(first, -(-columns.stop // 4), device=device)
    query = torch.arange(rows.start, rows.stop, device=device)[:, None]
    head = torch.arange(math.prod(heads), device=device).reshape(*heads, 1, 1)
    low, high = upload(seed, device).unbind()
    threshold = math.ceil(dropout * 2**32)  # exact: multiplying by 2³² changes only the exponent
    height = max(1, _COUNTERS // max(1, head.numel() * fours.numel()))
    parts = []
    for rows_of_part in query.split(height):
        words = philox((fours, rows_of_part, head, torch.zeros_like(fours)), (low, high))
        parts.append(torch.stack([word >= threshold for word in words], dim=-1).flatten(-2))
    return torch.cat(parts, dim=-2)[..., columns.start - 4 * first : columns.stop - 4 * first]


def philox(counter: Words, key: tuple[Tensor, Tensor]) -> tuple[Int[Tensor, "B H l q"], ...]:
    """Apply Philox4x32-10 to counters whose four words broadcast.

    Each word is stored in an int64. The first rounds work on small tensors; from the fourth on,
    each word depends on all four and has the full shape.
    """
    one, two, three, four = counter
    low, high = key
    for _ in range(_ROUNDS):
        high_one, low_one = _product(one, _MULTIPLIERS[0])
        high_three, low_three = _product(three, _MULTIPLIERS[1])
        one, two = high_three ^ two ^ low, low_three
        three, four = high_one ^ four ^ high, low_one
        low, high = (low + _WEYL[0]) & _MASK, (high + _WEYL[1]) & _MASK
    return one, two, three, four


def _product(word: Tensor, multiplier: int) -> tuple[Tensor, Tensor]:
    """Compute high and low word of a product; int64 wraps around, but all 64 bits are right."""
    product = word * multiplier
    return (product >> 32) & _MASK, product & _MASK
