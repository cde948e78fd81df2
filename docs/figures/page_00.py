"""The picture of page 0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drawing import FAINT, INK, arrow, canvas, tint, write
from matplotlib.patches import FancyBboxPatch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

_LETTER, _LINE, _HEIGHT = 0.107, 0.95, 0.32  # inches: a letter, from line to line, a word's ground
_LETTERS = 57  # of a line


def looking_back(names: Mapping[str, Any]) -> Figure:
    """Page 0: the sentence, each word shaded by the weight that its last word gives it."""
    figure, axes = canvas(6.9, 2.95)
    places: dict[str, tuple[float, float]] = {}
    x, y, used = 0.3, 0.5, 0
    for word, weight in _words(names["tokens"], names["weights"].tolist()):
        if used + len(word) > _LETTERS:
            x, y, used = 0.3, y + _LINE, 0
        width = _LETTER * len(word) + 0.12
        ground = FancyBboxPatch(
            (x, y),
            width,
            _HEIGHT,
            boxstyle="round,pad=0,rounding_size=0.06",
            facecolor=tint("weight", round(weight, 1)),
            edgecolor="none",
        )
        axes.add_patch(ground)
        write(axes, x + width / 2, y + _HEIGHT / 2 + 0.01, word, family="monospace")
        if weight > 0.3:
            write(axes, x + width / 2, y - 0.14, f"weight {weight:.1f}", color=INK)
        places[word] = (x + width / 2, y)
        x, used = x + width, used + len(word) + 1
    write(axes, x + 0.2, y + _HEIGHT / 2, "…", color=FAINT)
    (to_x, to_y), (from_x, from_y) = places["kite"], places["silver"]
    arrow(axes, (from_x, from_y - 0.03), (to_x, to_y + _HEIGHT + 0.05))
    return figure


def _words(tokens: list[str], weights: list[float]) -> list[tuple[str, float]]:
    """Tokens put together to words, with what all their tokens get."""
    words: list[tuple[str, float]] = []
    for token, weight in zip(tokens, weights, strict=True):
        if token.startswith(" ") or not words:
            words.append((token.strip(), weight))
        else:
            words[-1] = (words[-1][0] + token, words[-1][1] + weight)
    return words


PICTURES = {"looking-back": looking_back}
