"""Finds contradictions in the text of a story."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from regard.gpt.stories._lexicon import inflect
from regard.gpt.stories._story import CLOSING, Kind, Span
from regard.gpt.stories._template import Slot
from regard.gpt.stories._wordings import Match, has_values, matches, sentence_stop, tokens_of
from regard.gpt.stories._world import FORM_KINDS, KINDS, World

_ARTICLE = re.compile(r"\b([Aa]n?) (hour|[a-z])")


@dataclass(frozen=True)
class Mistake:
    """A word that contradicts the text before it.

    Example:
        >>> from regard.gpt.stories import check
        >>> (mistake,) = check("An tent stood in the park.")
        >>> mistake.word, mistake.expected, mistake.span
        ('An', 'a', (0, 2))
    """

    span: Span
    word: str
    expected: str
    kind: Kind | None  # None for an article


@dataclass(frozen=True)
class Review:
    """The result of `review`: mistakes, and sentences that match no passage.

    Example:
        >>> from regard.gpt.stories import review, story
        >>> review(story(0).text)
        Review(mistakes=(), unparsed=())
    """

    mistakes: tuple[Mistake, ...]
    unparsed: tuple[Span, ...]


def check(text: str) -> list[Mistake]:
    """Return the contradictions in a text; empty for every story of the generator.

    Args:
        text: a story of the generator or of a model. Sentences that match no passage of the world
            are ignored; `review` lists them.

    Example:
        >>> from regard.gpt.stories import check, story
        >>> check(story(0).text)
        []
        >>> [mistake.expected for mistake in check("An tent stood in the park.")]
        ['a']
    """
    return list(review(text).mistakes)


def review(text: str) -> Review:
    """Return the mistakes of a text, and the spans of sentences that match no passage.

    Example:
        >>> from regard.gpt.stories import review
        >>> review("Attention is all you need.").unparsed
        ((0, 26),)
    """
    reader = _Reader()
    tokens = tokens_of(text)
    texts = [token.text for token in tokens]
    unparsed = []
    i = 0
    while i < len(tokens):
        match = max(matches(tokens, i), key=reader.preference, default=None)
        if match is None:
            stop = sentence_stop(texts, i)
            unparsed.append((tokens[i].span[0], tokens[stop - 1].span[1]))
            i = stop
        else:
            reader.read(match)
            i = match.stop
    mistakes = [*reader.mistakes, *_marks(text), *_articles(text)]
    return Review(tuple(sorted(mistakes, key=lambda m: m.span)), tuple(unparsed))


class _Reader:
    """The facts of the world, read from a text passage by passage."""

    def __init__(self) -> None:
        self.mistakes: list[Mistake] = []
        self._world = World()
        self._values: dict[str, str] = {}
        self._scene = 0
        self._lines: dict[tuple[str, ...], str] = {}  # whose → what was said in this scene

    def preference(self, match: Match) -> tuple[int, bool]:
        """Return a sort key: the longest match first, then one that continues the scene."""
        return match.stop, match.wording.scene == self._scene

    def read(self, match: Match) -> None:
        if not match.words:  # it states no fact, and may interrupt a scene
            return
        if match.wording.scene != self._scene:
            self._values, self._lines = {}, {}
        self._scene = match.wording.scene
        for slot, word, _ in match.words:  # free slots introduce names
            if not slot.form and not slot.takes_fact:
                self._values[slot.variable] = word
        for slot, word, span in match.words:
            if slot.form:
                self._check_form(slot, word, span)
            else:
                self._check_facts(slot, word, span)

    def _check_form(self, slot: Slot, word: str, span: Span) -> None:
        entity = self._values.get(slot.variable)
        form = slot.form
        if entity is None or form is None:
            return
        expected = inflect(entity, form, slot.word_class)
        if expected is not None and expected != word:
            self.mistakes.append(Mistake(span, word, expected, FORM_KINDS[form]))

    def _check_facts(self, slot: Slot, word: str, span: Span) -> None:
        for operation in slot.operations:
            if not has_values(self._values, operation.about):
                continue
            fact = self._world.expected(operation, self._values)
            expected = word if fact is None else fact.value
            if operation.relation == "line":  # "Tom says" tells it, or says it once more
                about = tuple(self._values.get(name, name) for name in operation.about)
                expected = self._lines.setdefault(about, word)
            if expected != word:
                kind = Kind.ANSWER if operation.sign == "??" else KINDS.get(operation.relation)
                self.mistakes.append(Mistake(span, word, expected, kind))
            self._world.apply(operation, word, self._values, span)
        if slot.takes_fact and not slot.variable.endswith("0"):
            self._values.setdefault(slot.variable, word)


def _marks(text: str) -> Iterator[Mistake]:
    """Yield quotation marks and brackets that are not closed in their paragraph, or not opened."""
    for paragraph in re.finditer(r"(?:[^\n]|\n(?!\n))+", text):
        opened: list[re.Match[str]] = []
        for mark in re.finditer(r'["()]', paragraph.group()):
            expected = CLOSING[opened[-1].group()] if opened else ""
            if mark.group() == expected:
                opened.pop()
            elif mark.group() == "(" or (mark.group() == '"' and not opened):
                opened.append(mark)
            else:
                start = paragraph.start() + mark.start()
                yield Mistake((start, start + 1), mark.group(), expected, Kind.QUOTATION)
                opened.clear()
        for mark in opened:
            start = paragraph.start() + mark.start()
            yield Mistake((start, start + 1), mark.group(), "a closing mark", Kind.QUOTATION)


def _articles(text: str) -> Iterator[Mistake]:
    for match in _ARTICLE.finditer(text):
        article, sound = match.groups()
        expected = "an" if sound in {*"aeiou", "hour"} else "a"
        if article.lower() != expected:
            yield Mistake(match.span(1), article, expected, None)
