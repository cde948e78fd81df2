"""Tokens along the axes of a figure: all if they fit, else every n-th, with a note.

A character that no installed font can draw is written as its code point.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from matplotlib import font_manager

from regard.view.tokens import visible

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.text import Text

__all__ = [
    "LONGEST",
    "Ticks",
    "cells",
    "check_tokens",
    "drawable",
    "families",
    "inked",
    "skipped",
    "ticks",
]

LONGEST = 16
"""Maximum terminal cells of a label; a longer token is shortened by an ellipsis."""

# Fonts of operating systems for scripts that the fonts of matplotlib lack.
_OTHERS = (
    "Noto Sans",
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "WenQuanYi Zen Hei",
    "Hiragino Sans",
    "PingFang SC",
    "Apple SD Gothic Neo",
    "Yu Gothic",
    "Microsoft YaHei",
    "Malgun Gothic",
    "Arial Unicode MS",
    "Noto Sans Devanagari",
    "Noto Emoji",
    "Symbola",
)


@cache
def families() -> tuple[str, ...]:
    """Return the fonts to search for a character, in order."""
    installed = {entry.name for entry in font_manager.fontManager.ttflist}
    return (
        "DejaVu Sans Mono",
        "DejaVu Sans",
        *(name for name in _OTHERS if name in installed),
    )


@cache
def _characters() -> frozenset[int]:
    known: set[int] = set()
    for family in families():
        path = font_manager.findfont(family)
        known.update(font_manager.get_font(path).get_charmap())
    return frozenset(known)


def drawable(token: str, width: int = LONGEST) -> str:
    r"""Return a token as a figure shows it, at most `width` cells wide.

    >>> drawable(" is\n"), drawable("internationalisation", 12)
    ('␣is↵', 'internat…ion')
    """
    characters = list(map(inked, visible(token)))
    if cells("".join(characters)) <= width:
        return "".join(characters)
    tail = _fitting(characters[::-1], (width - 1) // 3)
    lead = _fitting(characters, width - 1 - cells("".join(tail)))
    return "".join([*lead, "…", *tail[::-1]])


def inked(text: str) -> str:
    """Replace characters that no installed font can draw by their code points."""
    return "".join(c if ord(c) in _characters() else f"<U+{ord(c):04X}>" for c in text)


def _fitting(characters: Sequence[str], width: int) -> list[str]:
    taken: list[str] = []
    for character in characters:
        if cells("".join(taken)) + cells(character) > width:
            break
        taken.append(character)
    return taken


def cells(text: str) -> int:
    """Return the width of a text, in characters of the monospaced font."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def check_tokens(tokens: Sequence[str] | None, *sizes: int) -> None:
    """Check that there is one token for each position of every axis."""
    if tokens is None:
        return
    if isinstance(tokens, str) or not all(isinstance(token, str) for token in tokens):
        raise TypeError("tokens must be a sequence of strings, one for each position")
    if set(sizes) != {len(tokens)}:
        counts = " and ".join(map(str, sizes))
        raise ValueError(f"{len(tokens)} tokens do not label {counts} positions")


class Ticks:
    """The labelled positions of an axis, and their labels."""

    def __init__(self, positions: list[int], labels: list[str], step: int, size: float) -> None:
        self.positions, self.labels, self.step, self.size = positions, labels, step, size

    @property
    def length(self) -> float:
        """Return the length of the longest label, in inches."""
        return max(map(cells, self.labels), default=0) * 0.61 * self.size / 72

    def put(self, axis: Axis, *, rotation: float = 0, pad: float = 3) -> None:
        """Label an axis."""
        axis.set_ticks(self.positions, self.labels)
        axis.set_tick_params(length=0, pad=pad, labelsize=self.size, labelrotation=rotation)
        texts: list[Text] = axis.get_ticklabels()
        for text in texts:
            text.set_parse_math(False)
            text.set_fontfamily(list(families()))


def ticks(
    tokens: Sequence[str] | None,
    shown: tuple[int, int],
    side: float,
    *,
    size: float = 8,
    across: float = 1.25,
) -> Ticks:
    """Choose the labels of an axis.

    Args:
        tokens: tokens of all positions; None numbers the positions.
        shown: start and stop of the positions on the axis.
        side: length of the axis, in inches.
        size: font size, in points.
        across: room that a label needs along the axis, in letter heights.
    """
    first, stop = shown
    cell, room = side / (stop - first), across * size / 72
    step = 1 if cell >= room else _round_step(1.25 * room / cell)
    positions = list(range(math.ceil(first / step) * step, stop, step))
    if tokens is None or step >= 100:
        labels = [str(i) for i in positions]
    else:
        labels = [drawable(tokens[i]) for i in positions]
        if step > 1:
            labels = [f"{i} {label}" for i, label in zip(positions, labels, strict=True)]
    return Ticks(positions, labels, step, size)


def skipped(step: int) -> str:
    """State which tokens are labelled.

    >>> skipped(2), skipped(50)
    ('every 2nd token is named', 'every 50th token is named')
    """
    return f"every {step}{'nd' if step == 2 else 'th'} token is named"


def _round_step(least: float) -> int:
    """Return the smallest step of 1, 2 or 5 times a power of ten that is at least so large."""
    base = 10 ** math.floor(math.log10(max(least, 1)))
    return next(step for step in (base, 2 * base, 5 * base, 10 * base) if step >= least * 0.999999)
