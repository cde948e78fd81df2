"""The text that tokens spell, and where each of them stands in it."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

__all__ = ["spell"]

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # a byte of a character, as tokenizers show it


def spell(tokens: Sequence[str]) -> tuple[list[int], list[int], str]:
    """Where each token starts and stops in the text that they spell, in characters; and the text.

    A token that holds part of a character counts as holding it whole.
    """
    pieces = [_bytes(token) for token in tokens]
    text = b"".join(pieces).decode(errors="surrogateescape")
    # Where each character, and each token, stops in bytes.
    signs = list(accumulate(len(sign.encode(errors="surrogateescape")) for sign in text))
    stops = list(accumulate(map(len, pieces)))
    starts = [bisect_right(signs, start) for start in (0, *stops[:-1])]
    ends = [bisect_left(signs, stop) + 1 if stop else 0 for stop in stops]
    return starts, ends, text


def _bytes(token: str) -> bytes:
    parts = _BYTE.split(token)  # text and hexadecimal digits in turn
    return b"".join(
        bytes.fromhex(part) if place % 2 else part.encode(errors="replace")
        for place, part in enumerate(parts)
    )
