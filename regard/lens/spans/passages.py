"""Passages of a text: spans of its characters, and of the tokens that hold them."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from regard._arguments import is_whole
from regard.lens.spans.links import Span
from regard.record.token_names import spell

__all__ = ["Passage", "check_passages", "split_passages", "token_offsets"]

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_HEADING = re.compile(r" {0,3}#{1,6}(\s|$)")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)\s*$")  # of a heading in the line before
_SENTENCE = re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s|$)")


@dataclass(frozen=True, kw_only=True)
class Passage:
    """A part of a text, on its tokens.

    Attributes:
        tokens: its first token, and one past its last.
        characters: its first character in the text, and one past its last; None if not known.
        text: what it reads; empty if not known.

    Example:
        >>> from regard.lens.spans.passages import split_passages, token_offsets
        >>> (passage,) = split_passages("They sleep.", token_offsets(["They", " sleep", "."]))
        >>> passage.tokens, passage.text
        ((0, 3), 'They sleep.')
    """

    tokens: Span
    characters: Span | None = None
    text: str = ""

    def __str__(self) -> str:
        first, stop = self.tokens
        return self.text or (
            f"token {first}" if stop == first + 1 else f"tokens {first}–{stop - 1}"
        )


def split_passages(
    text: str,
    offsets: Sequence[Span],
    *,
    start: int = 0,
    sentences: bool = False,
) -> tuple[Passage, ...]:
    r"""Split a text, plain or Markdown, into its paragraphs, on the tokens that a model reads.

    Paragraphs are separated by blank lines; a heading is a passage of its own, and a fenced block
    of code is one, blank lines included. A token belongs to the first passage of which it holds a
    character; one of white space alone to none.

    Args:
        text: the document.
        offsets: for each token its first character, and one past its last, in what the model
            reads, which may be more than the document: what a tokenizer of transformers gives as
            ``offset_mapping``, or `token_offsets`.
        start: where the document begins in what the model reads.
        sentences: split paragraphs into their sentences.

    Returns:
        The passages, in their order, without those that no token holds; their characters are
        counted in the document.

    Example:
        >>> text = "# Cats\nThey sleep.\n\nThey eat."
        >>> tokens = ["# Cats", "\n", "They", " sleep.", "\n\n", "They", " eat."]
        >>> for passage in split_passages(text, token_offsets(tokens)):
        ...     print(passage.tokens, passage.characters, passage.text)
        (0, 1) (0, 6) # Cats
        (2, 4) (7, 18) They sleep.
        (5, 7) (20, 29) They eat.
    """
    spans = _paragraphs(text)
    if sentences:
        spans = (sentence for span in spans for sentence in _sentences(text, span))

    def clip(end: int) -> int:
        return min(max(end - start, 0), len(text))

    own = [(clip(first), clip(stop)) for first, stop in offsets]
    return tuple(_placed(text, spans, own))


def token_offsets(tokens: Sequence[str]) -> list[Span]:
    """Where each token starts and stops in the text that all of them spell, in characters.

    Args:
        tokens: what the tokens spell, as `regard.record.token_names` gives them, or ``tokens`` of a
            tokenizer of `regard.gpt`. A token that holds part of a character counts as holding it
            whole. What WordPiece spells is not its text to the character: take the
            ``offset_mapping`` of its tokenizer.

    Raises:
        TypeError: for anything but strings, such as the tokens of several sequences.
        ValueError: for tokens as the vocabulary of a tokenizer writes them, such as ``Ġcat``.

    Example:
        >>> token_offsets(["The", " cat"])
        [(0, 3), (3, 7)]
    """
    starts, stops, _ = spell(tokens)
    return list(zip(starts, stops, strict=True))


def check_passages(spans: Sequence[Span | Passage], stop: int) -> tuple[Passage, ...]:
    """Passages of token spans, in their order.

    Args:
        spans: the spans.
        stop: the first token that none may hold: that of the answer.

    Raises:
        TypeError: for anything but passages and pairs of whole numbers.
        ValueError: for none, for spans that hold no token before the answer, and for those that
            overlap.
    """
    passages = [_passage(span) for span in spans]
    if not passages:
        raise ValueError("spans is empty; give at least one passage, (first, stop) in tokens")
    before = 0
    for passage in sorted(passages, key=lambda passage: passage.tokens):
        first, last = passage.tokens
        if not 0 <= first < last <= stop:
            raise ValueError(
                f"spans: ({first}, {last}) must hold 0 ≤ first < stop ≤ {stop}, the answer's first "
                "token"
            )
        if first < before:
            raise ValueError(
                f"spans: ({first}, {last}) overlaps the passage before it; give each token to one"
            )
        before = last
    return tuple(passages)


def _passage(span: Span | Passage) -> Passage:
    if isinstance(span, Passage):
        return span
    if not isinstance(span, (tuple, list)) or len(span) != 2 or not all(map(is_whole, span)):
        raise TypeError(
            f"spans must be passages or pairs of whole numbers (first, stop), but hold {span!r}"
        )
    first, stop = span
    return Passage(tokens=(int(first), int(stop)))


def _paragraphs(text: str) -> Iterator[Span]:
    """Paragraphs, headings and fenced blocks."""
    start: int | None = None  # of the paragraph that is open
    fence = ""  # that opened the block of code
    at = 0
    for line in text.splitlines(keepends=True):
        mark = _FENCE.match(line)
        blank = not line.strip()
        if fence:
            if mark and mark[1].startswith(fence) and not line.strip().strip(fence[0]):
                assert start is not None  # where the fence opened
                yield start, at + len(line)
                start, fence = None, ""
        elif mark or _HEADING.match(line) or blank:
            if start is not None:
                yield start, at
            start = at if mark else None
            fence = mark[1] if mark else ""
            if not mark and not blank:
                yield at, at + len(line)
        elif start is not None and _UNDERLINE.match(line):
            yield start, at + len(line)
            start = None
        elif start is None:
            start = at
        at += len(line)
    if start is not None:
        yield start, at


def _sentences(text: str, span: Span) -> Iterator[Span]:
    start, stop = span
    for end in _SENTENCE.finditer(text, start, stop):
        yield start, end.end()
        start = end.end()
    yield start, stop


def _placed(text: str, spans: Iterator[Span], offsets: Sequence[Span]) -> Iterator[Passage]:
    # Of tokens that hold white space alone, and of those without characters, nothing is left.
    inner = [_stripped(text, span) for span in offsets]
    held = [number for number, (start, stop) in enumerate(inner) if start < stop]
    starts = [inner[number][0] for number in held]
    stops = [inner[number][1] for number in held]
    taken = 0
    for span in spans:
        start, stop = _stripped(text, span)
        first = max(bisect_right(stops, start), taken)
        last = bisect_left(starts, stop)
        if start < stop and first < last:
            yield Passage(
                tokens=(held[first], held[last - 1] + 1),
                characters=(start, stop),
                text=text[start:stop],
            )
            taken = last


def _stripped(text: str, span: Span) -> Span:
    """The characters without the white space around them."""
    start, stop = span
    part = text[start:stop]
    return start + len(part) - len(part.lstrip()), stop - len(part) + len(part.rstrip())
