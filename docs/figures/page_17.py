"""The picture of page 17."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drawing import INK, LINE, canvas, tint, title, write
from matplotlib.patches import Rectangle

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEFT, _TOP, _HEIGHT, _LENGTH, _STEP = 0.75, 0.85, 0.36, 1.75, 2.55  # inches


def moved(names: Mapping[str, Any]) -> Figure:
    """Of each word: its weight, what is moved from there, and what that adds toward “kite”."""
    columns = (
        ("weight", "weight", "where the head looks", names["pattern"][0], 0.0),
        ("value", "moved", "weight × length of v W_O", names["moved"][0], 0.0),
        ("context", "toward", "“kite” less “drum”", names["toward"][0], 0.25),
    )
    figure, axes = canvas(_LEFT + 3 * _STEP, _TOP + 4 * _HEIGHT + 0.15)
    for place, (role, name, note, numbers, zero) in enumerate(columns):
        left = _LEFT + place * _STEP
        title(axes, left, _TOP - 0.5, role, name, note)
        for row, value in enumerate(numbers.tolist()):
            _bar(axes, left, _TOP + row * _HEIGHT, value, role, zero)
    for row, word in enumerate(names["words"]):
        write(axes, _LEFT - 0.12, _TOP + row * _HEIGHT + 0.14, word, "right")
    return figure


def _bar(axes: Axes, x: float, y: float, value: float, role: str, zero: float) -> None:
    """A bar from the column's 0, which lies at this share of it; its whole length stands for 1."""
    ground = {"facecolor": "#ffffff", "edgecolor": LINE, "linewidth": 0.8}
    axes.add_patch(Rectangle((x, y), _LENGTH, 0.27, **ground))
    length = _LENGTH * (1 - zero) * value
    start = x + _LENGTH * zero
    color = tint(role, 0.75)
    bar = Rectangle((min(start, start + length), y), abs(length), 0.27)
    bar.set(facecolor=color, edgecolor="none")
    axes.add_patch(bar)
    if zero:
        axes.plot([start, start], [y, y + 0.27], color=INK, linewidth=0.8)
    text = f"{value:z.2f}".replace("-", "−")
    write(axes, x + _LENGTH + 0.06, y + 0.15, text, "left", fontsize=9.5)


PICTURES = {"moved": moved}
