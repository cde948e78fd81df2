"""What an exercise says about the shell, marked, so that the style hides it beside its field.

The pages are read on GitHub too, where `regard check` is the one way to check an answer. A reader
whose browser runs no scripts has no field either, and reads them as they stand.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from markdown_it.token import Token

__all__ = ["mark_shell"]

_COMMAND = "regard check "
_OR = r"or what you \w+|or the other|or your number|yours? [^.;]*|the \w+ with spaces between"
_SAID = (
    re.compile(r" \([^()]*\x01+[^()]*\)"),
    # “Check it.” is right beside a field, and its button.
    re.compile(rf" with \x01+(?:, (?:{_OR})(?=[.;,]))?"),
    # Behind a colon or semicolon it takes these along: what stands before ends in a full stop.
    re.compile(r"[:;] [^.?!:;]*\x01+(?:[^.?!]|[.?!](?!\s|$))*(?=[.?!])"),
    # Else the sentence: a full stop ends one where a space follows.
    re.compile(r"(?<=[.?!]) (?:(?![.?!] )[^\x01])*\x01+(?:[^.?!]|[.?!](?!\s|$))*[.?!]"),
)
"""Ways in which a page says it, the first that fits; \x01 stands for the command in code."""


def mark_shell(inline: Token) -> None:
    """Put what a paragraph says about ``regard check`` into ``<span class="shell">``.

    Args:
        inline: the paragraph's token, whose children get two more of type ``exercise``.
    """
    children = inline.children or []
    text = "".join(map(_flat, children))
    found = next((match for one in _SAID if (match := one.search(text))), None)
    if found is not None:
        inline.children = [*_marked(children, *found.span())]


def _flat(child: Token) -> str:
    """What stands for a token, as long as it is: of code no signs that end a sentence."""
    if child.type == "code_inline":
        return ("\x01" if child.content.startswith(_COMMAND) else "\x02") * len(child.content)
    return " " if child.type in {"softbreak", "hardbreak"} else child.content


def _marked(children: Sequence[Token], start: int, stop: int) -> list[Token]:
    """The tokens with the marks at these places of their text, which is cut there."""
    result: list[Token] = []
    marks = [(start, '<span class="shell">'), (stop, "</span>")]
    at = 0
    for child in children:
        end = at + len(_flat(child))
        while marks and child.type == "text" and marks[0][0] < end:
            cut, mark = marks.pop(0)
            result += [_text(child.content[: cut - at]), Token("exercise", "", 0, content=mark)]
            child, at = _text(child.content[cut - at :]), cut  # noqa: PLW2901  # what is left of it
        while marks and marks[0][0] <= at < end:
            result.append(Token("exercise", "", 0, content=marks.pop(0)[1]))
        result.append(child)
        at = end
    return [*result, *(Token("exercise", "", 0, content=mark) for _, mark in marks)]


def _text(content: str) -> Token:
    return Token("text", "", 0, content=content)
