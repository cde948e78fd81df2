"""The text that tokens spell, and where each of them stands in it."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from reprlib import repr as short_repr

__all__ = ["BYTE_OF", "displayable", "spell"]

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # a byte of a character, as tokenizers show it
_VOCABULARY = re.compile(r"[ĠĊ▁]\S|\w</w>$|^##\w")  # a space, an end or a middle of a word


def spell(tokens: Sequence[str]) -> tuple[list[int], list[int], str]:
    """Where each token starts and stops in the text that they spell, in characters; and the text.

    A token that holds part of a character counts as holding it whole.

    Raises:
        TypeError: for anything but strings.
        ValueError: for tokens as a vocabulary writes them, which spell another text.
    """
    _check(tokens)
    pieces = [_bytes(token) for token in tokens]
    text = b"".join(pieces).decode(errors="surrogateescape")
    # Where each character, and each token, stops in bytes.
    signs = list(accumulate(len(sign.encode(errors="surrogateescape")) for sign in text))
    stops = list(accumulate(map(len, pieces)))
    starts = [bisect_right(signs, start) for start in (0, *stops[:-1])]
    ends = [bisect_left(signs, stop) + 1 if stop else 0 for stop in stops]
    return starts, ends, text


def displayable(data: bytes) -> str:
    r"""The UTF-8 text, with bytes of incomplete characters written out.

    >>> displayable("é".encode() + b"\xe4")
    'é<0xE4>'
    """
    return "".join(
        f"<0x{ord(sign) - 0xDC00:02X}>" if 0xDC80 <= ord(sign) <= 0xDCFF else sign
        for sign in data.decode(errors="surrogateescape")
    )


def _check(tokens: Sequence[str]) -> None:
    """Refuse what is no list of strings, and strings as a vocabulary writes them.

    Those hold no white space at all, and signs with which vocabularies write it.
    """
    is_list = isinstance(tokens, (list, tuple))
    if not is_list or not all(isinstance(token, str) for token in tokens):
        raise TypeError(
            f"tokens must be a list of strings, one for each token, but is {short_repr(tokens)}; "
            "of a recording, give those of one sequence: recording.tokens[0]"
        )
    written = next((token for token in tokens[1:] if _VOCABULARY.search(token)), None)
    if written is not None and not any(re.search(r"\s", token) for token in tokens):
        raise ValueError(
            f"tokens: {written!r} is how a vocabulary writes a token, not what it spells; give "
            "regard.record.token_names(tokenizer, ids)"
        )


def _bytes(token: str) -> bytes:
    parts = _BYTE.split(token)  # text and hexadecimal digits in turn
    return b"".join(
        bytes.fromhex(part) if place % 2 else part.encode(errors="replace")
        for place, part in enumerate(parts)
    )


def _byte_of() -> dict[str, bytes]:
    """The byte of each sign of GPT-2's alphabet of 256 printable signs.

    Printable Latin-1 stands for itself; the other bytes, in order, are written as the signs
    from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    signs = printable + [256 + i for i in range(len(others))]
    return {chr(sign): bytes([byte]) for sign, byte in zip(signs, printable + others, strict=True)}


BYTE_OF = _byte_of()
"""The byte of each sign of GPT-2's alphabet."""
