"""Matches the passages of the world, as a tree of tokens, against a text."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from regard.gpt.stories._lexicon import CLASS_OF, WORDS, form_classes
from regard.gpt.stories._story import Span
from regard.gpt.stories._template import Slot, expand, parts
from regard.gpt.stories.scenes import (
    ENDINGS,
    GROUPS,
    INTRODUCTIONS,
    OPENINGS,
    QUESTIONS,
    SIGHTS,
    TRANSITIONS,
)

TOKEN = re.compile(r"[A-Za-z]+(?:-[a-z]+)*|'[a-z]+|[^\sA-Za-z]")
_LINE = "any words up to the closing quotation mark"
_ENDS = {".", "!", "?"}


@dataclass(frozen=True)
class Token:
    """A word or a punctuation mark of a text."""

    text: str
    span: Span


@dataclass(frozen=True)
class Wording:
    """A passage or one of its sentences, as words and slots, and its scene."""

    items: tuple[str | Slot, ...]
    scene: int


@dataclass(frozen=True)
class Match:
    """A wording found in a text: the word at each slot, and the end token (exclusive)."""

    wording: Wording
    words: tuple[tuple[Slot, str, Span], ...]
    stop: int


@dataclass
class _Node:
    following: defaultdict[str, _Node] = field(default_factory=lambda: defaultdict(_Node))
    wordings: list[Wording] = field(default_factory=list)


def tokens_of(text: str) -> list[Token]:
    """Return the words and marks of a text."""
    return [Token(match.group(), match.span()) for match in TOKEN.finditer(text)]


def sentence_stop(texts: list[str], start: int) -> int:
    """Return the end (exclusive) of the sentence that begins at `start`, quotations included."""
    is_open = False
    for i in range(start, len(texts)):
        if texts[i] == '"':
            is_open = not is_open
        follows_mark = i > start and texts[i] == '"' and texts[i - 1] == "."
        if (texts[i] in _ENDS or follows_mark) and not is_open:
            return i + 1
    return len(texts)


def matches(tokens: list[Token], start: int) -> Iterator[Match]:
    """Yield all wordings that match a text from a token on."""
    waiting = [(_tree(), start)]
    while waiting:
        node, i = waiting.pop()
        for wording in node.wordings:
            words = _align(wording, tokens[start:i])
            if words is not None:
                yield Match(wording, words, i)
        if i == len(tokens):
            continue
        key = _key(tokens[i].text)
        if key in node.following:
            waiting.append((node.following[key], i + 1))
        if _LINE in node.following:
            waiting.append((node.following[_LINE], _line_stop(tokens, i)))


def _line_stop(tokens: list[Token], start: int) -> int:
    return next((i for i in range(start, len(tokens)) if tokens[i].text == '"'), len(tokens))


def _align(wording: Wording, tokens: list[Token]) -> tuple[tuple[Slot, str, Span], ...] | None:
    """Return the words at a wording's slots, or None if a literal word differs."""
    words = []
    i = 0
    values: dict[str, str] = {}
    for item in wording.items:
        token = tokens[i]
        i += 1
        if isinstance(item, str):
            if CLASS_OF.get(item.lower()) != "article" and token.text.lower() != item.lower():
                return None
            continue
        word, span = _canonical(token.text, item), token.span
        if item.word_class == "line":
            stop = _line_stop(tokens, i)
            word = " ".join(t.text for t in tokens[i - 1 : stop])
            span, i = (token.span[0], tokens[stop - 1].span[1]), stop
        is_named = not item.form and not item.takes_fact
        if is_named and values.setdefault(item.variable, word) != word:
            return None
        words.append((item, word, span))
    return tuple(words)


def _canonical(word: str, slot: Slot) -> str:
    if slot.word_class in {"name", "line"}:
        return word
    return WORDS.get(word.lower(), word.lower())


def _key(word: str) -> str:
    lower = word.lower()
    known = lower in CLASS_OF or lower in vocabulary() or not lower[0].isalpha()
    return CLASS_OF.get(lower, lower) if known else "name"


def _passages() -> Iterator[tuple[str, int]]:
    """Yield every template with the index of its scene."""
    frame = [OPENINGS, TRANSITIONS, SIGHTS, ENDINGS, INTRODUCTIONS]
    frame += [templates for _, templates in QUESTIONS.values()]
    for i, templates in enumerate(frame):
        for template in templates:
            yield template, -1 - i
    for i, scene in enumerate(scene for group in GROUPS for scene in group):
        for beat in scene:
            for template in beat:
                yield template, i


def _items(template: str) -> Iterator[str | Slot]:
    for part in parts(template):
        if isinstance(part, Slot):
            yield part
        else:
            yield from TOKEN.findall(part)


@cache
def vocabulary() -> frozenset[str]:
    """Return all words of passages that are not in the lexicon, in lower case."""
    items = (item for wording in _wordings() for item in wording.items)
    return frozenset(item.lower() for item in items if isinstance(item, str))


@cache
def _tree() -> _Node:
    root = _Node()
    for wording in _wordings():
        nodes = [root]
        for item in wording.items:
            nodes = [node.following[key] for node in nodes for key in _keys(item)]
        for node in nodes:
            node.wordings.append(wording)
    return root


@cache
def _wordings() -> tuple[Wording, ...]:
    """Return every passage and sentence once: many passages share a sentence."""
    wordings: dict[Wording, None] = {}
    for passage, scene in _passages():
        for template in expand(passage):
            items = tuple(_items(template))
            if items:
                wordings[Wording(items, scene)] = None
            texts = [item if isinstance(item, str) else "" for item in items]
            start = 0
            while start < len(items):
                stop = sentence_stop(texts, start)
                wordings[Wording(items[start:stop], scene)] = None
                start = stop
    return tuple(wordings)


def _keys(item: str | Slot) -> list[str]:
    if isinstance(item, str):
        return [CLASS_OF.get(item.lower(), item.lower())]
    if item.word_class == "line":
        return [_LINE]
    return sorted(form_classes(item.form)) if item.form else [item.word_class]


def has_values(values: Mapping[str, str], names: tuple[str, ...]) -> bool:
    """Return True if all variables among the names have values; other names are literals."""
    return all(name in values or not _is_variable(name) for name in names)


def _is_variable(name: str) -> bool:
    return name.rstrip("0123456789") in {*CLASS_OF.values(), "name", "line"}
