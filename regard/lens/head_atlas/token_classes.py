"""Classes of tokens by their text: what a head reads or writes beside it depends on them.

Axes: T tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from unicodedata import category

from regard.lens.naming.separators import is_separator

__all__ = ["CLASSES", "token_classes"]

CLASSES = ("separator", "number", "name", "code", "word", "other")
"""In the order in which they are tried: punctuation, line breaks and special tokens; digits alone;
a capital where no sentence begins; symbols, underscores or a capital inside; letters; the rest."""

_ENDS = re.compile(r"[.!?:\n]\W*$")
_OPENS = re.compile(r"[\W_]+")  # a quotation mark at a sentence's beginning
_BYTE = re.compile(r"<0x[0-9A-F]{2}>|\ufffd+")  # of a character that is cut apart
_SYMBOLS = ("Sm", "Sc", "Sk")  # of mathematics, currencies and keyboards; no emoji
_CAMEL = re.compile(r"[a-z][A-Z]|_")


def token_classes(tokens: Sequence[str]) -> list[str]:
    r"""Return the class of each token of a text, among `CLASSES`.

    >>> token_classes(["\n", "The", " cat", " saw", " Tom", ",", " 17", " ==", " get_x"])
    ['separator', 'word', 'word', 'word', 'name', 'separator', 'number', 'code', 'code']
    """
    classes, begins = [], True
    for token in tokens:
        bare = token.strip()
        if is_separator(token):
            own = "separator"
        elif _BYTE.fullmatch(bare):
            own = "other"
        elif bare.isdecimal():
            own = "number"
        elif any(category(one) in _SYMBOLS for one in bare) or _CAMEL.search(bare):
            own = "code"
        elif bare[:1].isupper() and not begins:
            own = "name"
        elif any(map(str.isalpha, bare)):
            own = "word"
        else:
            own = "other"
        classes.append(own)
        if bare or "\n" in token:
            begins = (
                bool(_ENDS.search(token))
                or _is_special(bare)
                or (begins and bool(_OPENS.fullmatch(bare)))
            )
    return classes


def _is_special(bare: str) -> bool:
    """Return True for a special token, behind which a text begins."""
    return is_separator(bare) and bare[:1] in "<[" and len(bare) > 2
