"""Links of a text, placed on its tokens: the query that predicts a word, and the keys that decide.

Axes: B batch, L queries, S keys.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import Protocol, runtime_checkable

from regard.record.token_names import spell

__all__ = ["Link", "Span", "TokenLink", "place_links"]

Span = tuple[int, int]
"""Start and stop, in characters or tokens."""

_WORD = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]")  # a word or a punctuation mark
_FACTOR = 2  # maximum ratio of the distances of a control word and a deciding word


@runtime_checkable
class Link(Protocol):
    """A word of a text that follows from earlier words, such as `regard.gpt.stories.Link`.

    Spans are ``(start, stop)`` in characters of the text.

    Example:
        >>> from types import SimpleNamespace
        >>> from regard.lens import Link
        >>> copy = SimpleNamespace(kind="copy", decided=(13, 16), deciding=[(0, 3)], decoys=[])
        >>> isinstance(copy, Link)
        True
    """

    @property
    def kind(self) -> str | Enum:
        """The kind of link; a member of an enumeration is shown by its name, in lower case."""

    @property
    def decided(self) -> Span:
        """The word that follows."""

    @property
    def deciding(self) -> Sequence[Span]:
        """The earlier words that it follows from."""

    @property
    def decoys(self) -> Sequence[Span]:
        """Earlier words that could have decided it and did not."""


@dataclass(frozen=True)
class TokenLink:
    """A link on the tokens of its text; a word is a span of tokens."""

    kind: str
    query: int
    """The position that predicts the decided word's first token: the one before it."""
    deciding: tuple[Span, ...]
    decoys: tuple[Span, ...]
    controls: tuple[Span, ...]
    """Words at a similar distance that neither decide nor are decoys; see `_Words._controls`."""

    @property
    def keys(self) -> list[int]:
        """Return the keys of the deciding words, each once."""
        return sorted(set(chain.from_iterable(range(*word) for word in self.deciding)))


def place_links(
    tokens: Sequence[str], links: Iterable[Link], text: str | None = None
) -> list[TokenLink]:
    """Place links on tokens.

    Args:
        tokens: the tokens as strings, whose concatenation is the text. A single byte of a character
            may be written ``<0xE2>``.
        links: the links.
        text: the text that the spans refer to, if the tokens contain more, such as a token for the
            beginning, or to check that the tokens contain it.

    Raises:
        TypeError: for an object that is not a link.
        ValueError: for tokens that do not contain the text, and for spans beyond its end.

    >>> from types import SimpleNamespace
    >>> link = SimpleNamespace(kind="copy", decided=(8, 9), deciding=((0, 1),), decoys=((2, 3),))
    >>> place_links(["a", " b", " c", " d", " a"], [link])[0]
    TokenLink(kind='copy', query=3, deciding=((0, 1),), decoys=((1, 2),), controls=((2, 3),))
    """
    words = _Words(tokens, text)
    return [words.place(number, link) for number, link in enumerate(links)]


class _Words:
    """The words of a text, on its tokens."""

    def __init__(self, tokens: Sequence[str], text: str | None) -> None:
        self._starts, self._ends, spelling = spell(tokens)
        self._first = 0 if text is None else _only_place(text, spelling)
        self.text = spelling if text is None else text
        words = {self.tokens(*match.span()): match[0] for match in _WORD.finditer(self.text)}
        self._words = list(words.items())
        self._stops = [span[1] for span, _ in self._words]

    def tokens(self, start: int, stop: int) -> Span:
        """Return the tokens that overlap a span of characters."""
        first = bisect_right(self._ends, self._first + start)
        return first, bisect_left(self._starts, self._first + stop)

    def place(self, number: int, link: Link) -> TokenLink:
        """Place a link; its number identifies it in errors."""
        if not isinstance(link, Link):
            raise TypeError(
                f"links[{number}] must have kind, decided, deciding and decoys, but is {link!r}"
            )
        kind = link.kind.name.lower() if isinstance(link.kind, Enum) else str(link.kind)
        for span in (link.decided, *link.deciding, *link.decoys):
            if not 0 <= span[0] < span[1] <= len(self.text):
                raise ValueError(
                    f"links[{number}] ({kind}) has the span {tuple(span)}, which must lie within "
                    f"the {len(self.text)} characters of the tokens; record the whole text, or "
                    "leave the link out"
                )
        decided = self.tokens(*link.decided)[0]
        deciding = list(self._before(decided, link.deciding))
        if not deciding:
            raise ValueError(
                f"links[{number}] ({kind}) has no deciding word in a token before that of its "
                f"decided word, token {decided}; leave it out"
            )
        decoys = [word for word in self._before(decided, link.decoys) if word not in deciding]
        names = {self.text[slice(*span)] for span in (*link.deciding, *link.decoys)}
        return TokenLink(
            kind=kind,
            query=decided - 1,
            deciding=tuple(deciding),
            decoys=tuple(decoys),
            controls=tuple(self._controls(decided, deciding, decoys, names)),
        )

    def _before(self, decided: int, spans: Iterable[Span]) -> Iterator[Span]:
        """Yield words as spans of tokens, each once, if they begin before the decided word."""
        for start, stop in dict.fromkeys(self.tokens(*span) for span in spans):
            if start < decided:
                yield start, min(stop, decided)

    def _controls(
        self, decided: int, deciding: Sequence[Span], decoys: Sequence[Span], names: set[str]
    ) -> Iterator[Span]:
        """Yield control words: at half to twice a deciding word's distance, a mark for a mark.

        The text's first token is left out, since it is often an attention sink.
        """
        own = set(chain.from_iterable(range(*word) for word in (*deciding, *decoys)))
        controls: dict[Span, None] = {}
        for word in deciding:
            distance = decided - word[1] + 1
            # The last token of a control word is stop − 1, its distance decided − stop + 1.
            first = bisect_left(self._stops, decided + 1 - _FACTOR * distance)
            last = bisect_right(self._stops, decided + 1 - distance / _FACTOR)
            is_word = self._is_word(word)
            for span, name in self._words[first:last]:
                free = span[0] > 0 and span[1] <= decided and own.isdisjoint(range(*span))
                if free and name not in names and name[0].isalnum() == is_word:
                    controls[span] = None
        return iter(controls)

    def _is_word(self, span: Span) -> bool:
        """Return True if a span holds a letter or digit, and is not only a punctuation mark."""
        start, stop = self._starts[span[0]] - self._first, self._ends[span[1] - 1] - self._first
        return any(map(str.isalnum, self.text[max(start, 0) : stop]))


def _only_place(text: str, spelling: str) -> int:
    count = spelling.count(text) if text else 0
    if count != 1:
        raise ValueError(
            f"text must occur once in what the tokens spell, but occurs {count} times; they begin "
            f"{spelling[:40]!r}, it begins {text[:40]!r}"
        )
    return spelling.index(text)
