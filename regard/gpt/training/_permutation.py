"""Pseudorandom numbers and permutations as pure functions: stateless, the same on any machine."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_WORD = 2**64 - 1
_ROUNDS = 6


def mix(*numbers: int) -> int:
    """Return a whole number below 2**63 that depends on all of `numbers` and on their order.

    SplitMix64's step and finaliser (Steele et al., "Fast Splittable Pseudorandom Number
    Generators", 2014), once for each number.

    >>> mix(1, 2) == mix(1, 2), mix(1, 2) == mix(2, 1)
    (True, False)
    """
    state = 0
    for number in numbers:
        state = (state ^ number) + 0x9E3779B97F4A7C15 & _WORD
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _WORD
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _WORD
        state ^= state >> 31
    return state >> 1


def permuted(index: NDArray[np.int64], size: int, key: int) -> NDArray[np.int64]:
    """Return the images of some indices under a random permutation of ``0 … size - 1``.

    A Feistel network on the next power of four, walked until it falls below `size` (Black and
    Rogaway, "Ciphers with Arbitrary Finite Domains", 2002: cycle walking). So a permutation of any
    size, up to 2**62, needs no memory, and each image is computed alone.

    Args:
        index: the indices, each below `size`.
        size: size of the permuted range.
        key: identifies the permutation, below 2**63.

    >>> sorted(permuted(np.arange(5), 5, key=3).tolist())
    [0, 1, 2, 3, 4]
    """
    half = np.uint64(((size - 1).bit_length() + 1) // 2)
    low = np.uint64((1 << int(half)) - 1)
    keys = [np.uint64(mix(key, number)) for number in range(_ROUNDS)]

    def encrypt(places: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = places >> half, places & low
        for number in keys:
            left, right = right, left ^ (_scrambled(right ^ number) & low)
        return left << half | right

    places = encrypt(index.astype(np.uint64))
    while (outside := places >= size).any():
        places[outside] = encrypt(places[outside])
    return places.astype(np.int64)


def _scrambled(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    words = (words ^ words >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ words >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return words ^ words >> np.uint64(31)
