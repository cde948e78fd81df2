"""Which tokens separate others: punctuation, line breaks and special tokens."""

from __future__ import annotations

import re
from unicodedata import category

__all__ = ["is_separator"]

_SPECIAL = re.compile(r"<[^<>\s]+>|\[[A-Z]+\]")
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")  # of a character that is cut apart


def is_separator(token: str) -> bool:
    r"""Return True for a token of punctuation alone, a line break, or a special token by its name.

    Punctuation is what Unicode counts as such (categories P). White space around it does not count.
    A special token is in angle brackets or, in capitals, in square ones.

    >>> [is_separator(token) for token in (".", ' ("', "\n", "[SEP]", "<|end|>")]
    [True, True, True, True, True]
    >>> [is_separator(token) for token in ("a.", " ", "$", "<", "<0xE4>", "")]
    [False, False, False, False, False, False]
    """
    bare = token.strip()
    if not bare:
        return "\n" in token
    if _SPECIAL.fullmatch(bare):
        return not _BYTE.fullmatch(bare)
    return all(category(character)[0] == "P" for character in bare)
