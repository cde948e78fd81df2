"""Passages of a text: spans of its characters, and of the tokens that hold them."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from regard._arguments import is_whole
from regard.lens.spans.links import Span
from regard.record.token_names import spell

__all__ = ["Passage", "check_spans", "require_apart", "split_passages", "token_offsets"]

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_HEADING = re.compile(r" {0,3}#{1,6}(\s|$)")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)\s*$")  # makes the line before it a heading
_SENTENCE = re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s|$)")


@dataclass(frozen=True, kw_only=True)
class Passage:
    """A part of a text, on its tokens.

    Attributes:
        tokens: start and stop in tokens.
        characters: start and stop in characters of the text; None if not known.
        text: its text; empty if not known.

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
        where = str(first) if stop == first + 1 else f"{first}–{stop - 1}"
        return f"{where} {self.text}" if self.text else where


def split_passages(
    text: str,
    offsets: Sequence[Span],
    *,
    start: int = 0,
    sentences: bool = False,
) -> tuple[Passage, ...]:
    r"""Split a text, plain or Markdown, into its paragraphs, on the tokens that a model reads.

    Paragraphs are separated by blank lines; a heading and a fenced code block, blank lines
    included, are passages too. A token belongs to the first passage of which it holds a
    character; a token of white space alone belongs to none.

    Args:
        text: the document.
        offsets: for each token, start and stop in characters of the model's input, which may
            contain more than the document: ``offset_mapping`` of a tokenizer of transformers, or
            the result of `token_offsets`.
        start: index in the model's input of the document's first character.
        sentences: whether to split paragraphs into sentences.

    Returns:
        The passages, in order, without those that have no token; characters are counted in the
        document.

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
    """Return start and stop of each token in the concatenation of all tokens, in characters.

    Args:
        tokens: the tokens as strings, as from `regard.record.token_names`, or ``tokens`` of a
            tokenizer of `regard.gpt`. A token that holds part of a character counts as holding it
            whole. WordPiece tokens do not concatenate to their text: use the
            ``offset_mapping`` of the tokenizer.

    Raises:
        TypeError: for anything but strings, such as the tokens of several sequences.
        ValueError: for tokens as the vocabulary of a tokenizer writes them, such as ``Ġcat``.

    Example:
        >>> token_offsets(["The", " cat"])
        [(0, 3), (3, 7)]
    """
    starts, stops, _ = spell(tokens)
    return list(zip(starts, stops, strict=True))


def check_spans(spans: Sequence[Span | Passage], stop: int, name: str) -> tuple[Passage, ...]:
    """Check spans of tokens and convert them to passages, in order.

    Args:
        spans: the spans.
        stop: one past the last token that a span may hold.
        name: name of the argument.

    Raises:
        TypeError: for anything but passages and pairs of integers.
        ValueError: for no spans, and for spans that are empty or reach further.
    """
    passages = tuple(_passage(span, name) for span in spans)
    if not passages:
        raise ValueError(f"{name} is empty; give at least one span of tokens, (first, stop)")
    for passage in passages:
        first, last = passage.tokens
        if not 0 <= first < last <= stop:
            raise ValueError(
                f"{name}: ({first}, {last}) is not a span of the tokens that may be looked at; it "
                f"must hold 0 ≤ first < stop ≤ {stop}"
            )
    return passages


def require_apart(passages: Sequence[Passage], name: str) -> None:
    """Reject passages that overlap.

    Raises:
        ValueError: if they do.
    """
    before = 0
    for first, stop in sorted(passage.tokens for passage in passages):
        if first < before:
            raise ValueError(
                f"{name}: ({first}, {stop}) overlaps the span before it; give each token to one"
            )
        before = stop


def _passage(span: Span | Passage, name: str) -> Passage:
    if isinstance(span, Passage):
        return span
    if not isinstance(span, (tuple, list)) or len(span) != 2 or not all(map(is_whole, span)):
        raise TypeError(
            f"{name} must hold passages or pairs of whole numbers (first, stop), but holds {span!r}"
        )
    first, stop = span
    return Passage(tokens=(int(first), int(stop)))


def _paragraphs(text: str) -> Iterator[Span]:
    """Yield paragraphs, headings and fenced code blocks."""
    start: int | None = None  # of the open paragraph
    fence = ""  # of the open code block
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
    # Tokens of white space alone, and those without characters, become empty.
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
    """Strip white space from both ends of a span."""
    start, stop = span
    part = text[start:stop]
    return start + len(part) - len(part.lstrip()), stop - len(part) + len(part.rstrip())
