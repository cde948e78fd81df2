"""The picture of page 11."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drawing import FAINT, canvas, square, tint, write

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

_CELL = 0.185


def positions(names: Mapping[str, Any]) -> Figure:
    """Scores of one word eight times, which only its positions tell apart."""
    figure, axes = canvas(8.6, 2.2)
    for panel, (name, scores) in enumerate(names["scores"].items()):
        left = 0.3 + panel * 1.68
        write(axes, left + 4 * _CELL, 0.2, "ALiBi" if name == "alibi" else name)
        visible = scores[scores.isfinite()]
        low, high = visible.min().item(), visible.max().item()
        for i in range(len(scores)):
            for j in range(i + 1):
                same = high - low < 1e-3  # up to rounding
                strength = 0.5 if same else (scores[i, j].item() - low) / (high - low)
                at = left + j * _CELL, 0.38 + i * _CELL
                square(axes, *at, tint("score", strength), "", _CELL, _CELL)
    legend = "rows: queries; columns: keys; the stronger the shade, the higher the score"
    write(axes, 0.3, 2.05, legend, "left", color=FAINT)
    return figure


PICTURES = {"positions": positions}
