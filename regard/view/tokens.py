"""Display of tokens: without invisible characters, or any that move the cursor."""

from __future__ import annotations

import unicodedata

__all__ = ["readable", "visible"]

_SIGNS = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍"}
# Categories of Unicode without a glyph: control, format, surrogate, private use, unassigned, line
# and paragraph separators.
_SHAPELESS = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def visible(token: str) -> str:
    r"""Return a token with every character visible.

    Space, newline, tab and carriage return become ␣ ↵ ⇥ ␍; a character without a glyph becomes its
    code point; a combining mark at the start gets a dotted circle.

    >>> visible(" is"), visible("\n\n"), visible("a\u200bb"), visible("")
    ('␣is', '↵↵', 'a<U+200B>b', '∅')
    """
    if not token:
        return "∅"
    if _is_plain(token):
        return token.replace(" ", _SIGNS[" "])
    shown = "".join(_sign(character) for character in token)
    return f"◌{shown}" if unicodedata.combining(token[0]) else shown


def readable(token: str) -> str:
    r"""Return a token as in `visible`, but with spaces as they are.

    >>> readable(" is"), readable("a\u200bb\n")
    (' is', 'a<U+200B>b↵')
    """
    if _is_plain(token):
        return token
    return " ".join(visible(part) if part else "" for part in token.split(" "))


def _is_plain(token: str) -> bool:
    """Return True for printable ASCII; a fast test, since most tokens are."""
    return token.isascii() and token.isprintable()


def _sign(character: str) -> str:
    if character in _SIGNS:
        return _SIGNS[character]
    category = unicodedata.category(character)
    if category in _SHAPELESS or (category == "Zs" and character != " "):
        return f"<U+{ord(character):04X}>"
    return character
