"""A baseline that predicts a decided word from the passage and word order alone.

A link that it predicts can be answered without knowing the deciding word.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from regard.gpt.stories._lexicon import CLASS_OF
from regard.gpt.stories._story import Kind, Link, Story

_WORD = re.compile(r"[A-Za-z]+(?:-[a-z]+)*|\S")
_SENTENCES = re.compile(r"[.?!]\"? ")
# The deciding word, which identifies the referent, is hidden from the baseline.
_HIDDEN = {Kind.PRONOUN, Kind.AGREEMENT, Kind.SPEAKER}
_NUMBERS = {
    "animals": "animal",
    "items": "animal",
    "thing": "animal",
}  # the competing noun

Guess = tuple[str, int]  # an order, and a position in it


class OrderGuesser:
    """Predicts decided words from the passage and the order of the candidate words.

    Args:
        stories: the training stories, from which it counts the answer's positions per passage.

    Example:
        >>> from regard.gpt.stories import OrderGuesser, stories
        >>> guesser = OrderGuesser(stories(1000, 20))
        >>> one = next(stories(0, 1))
        >>> guesser.is_right(one, one.links[-1]) in {True, False}
        True
    """

    def __init__(self, stories: Iterable[Story]) -> None:
        counts: dict[tuple[object, ...], Counter[Guess]] = defaultdict(Counter)
        for story in stories:
            for link in story.links:
                hits = _hits(story, link)
                for key in _keys(story, link):
                    counts[key].update(hits)
        self._best = {key: _most_frequent(hits) for key, hits in counts.items() if hits}

    def is_right(self, story: Story, link: Link) -> bool:
        """Return whether it guesses the decided word of a link."""
        for key in _keys(story, link):
            if key in self._best:
                return self._best[key] in _hits(story, link)
        return False


def _most_frequent(hits: Counter[Guess]) -> Guess:
    """Return the most frequent guess, the alphabetically first in case of ties."""
    return min(hits, key=lambda guess: (-hits[guess], guess))


def _keys(story: Story, link: Link) -> list[tuple[object, ...]]:
    """Return the features of a link, the most specific first: sentences as classes of words."""
    start = story.text.rfind("\n\n", 0, link.decided[0]) + 1
    before = story.text[start : link.decided[0]]
    places = [0, *(match.end() for match in _SENTENCES.finditer(before))]
    return [(link.kind, tuple(_classes(before[place:]))) for place in (places[0], *places[-2:])]


def _classes(text: str) -> list[str]:
    words = (match.group() for match in _WORD.finditer(text))
    classes = (CLASS_OF.get(word.lower(), word) for word in words)
    return [_NUMBERS.get(one, one) for one in classes]


def _hits(story: Story, link: Link) -> set[Guess]:
    """Return the guesses that give the decided word."""
    decided = story.text[slice(*link.decided)].lower()
    hidden = link.deciding[0] if link.kind in _HIDDEN else None
    forms = {story.text[slice(*span)].lower(): decided for span in link.deciding}
    for span, form in zip(link.decoys, link.alternatives, strict=True):
        forms.setdefault(story.text[slice(*span)].lower(), form.lower())
    start = story.text.rfind("\n\n", 0, link.decided[0]) + 1
    hits: set[Guess] = {("form " + decided, 0)} if link.kind in _HIDDEN else set()
    for order, begin in (("story", 0), ("paragraph", start)):
        mentions = [
            match.group().lower()
            for match in _WORD.finditer(story.text, begin, link.decided[0])
            if match.group().lower() in forms and match.span() != hidden
        ]
        hits |= _places(order + " first", list(dict.fromkeys(mentions)), forms, decided)
        hits |= _places(order + " last", list(dict.fromkeys(mentions[::-1])), forms, decided)
    return hits


def _places(order: str, words: Sequence[str], forms: dict[str, str], decided: str) -> set[Guess]:
    return {(order, i) for i, word in enumerate(words) if forms[word] == decided}
