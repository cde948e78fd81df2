"""What the pictures are drawn with: paper, ink, and one colour for each part of attention.

`ROLES` has the colours: query, key, value, score, weight, context. All lengths are in inches, x to
the right and y down. `dark.py` adds the colours for a dark screen, so a picture needs none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dark import oklch
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle
from torch import Tensor

from regard.view.plot.colour import srgb
from regard.view.plot.style import ACCENT, FAINT, INK, LINE, ROLES, STYLE, canvas, number, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "ACCENT",
    "CELL_HEIGHT",
    "CELL_WIDTH",
    "FAINT",
    "INK",
    "LINE",
    "ROLES",
    "SHADES",
    "STYLE",
    "TOKENS",
    "arrow",
    "box",
    "canvas",
    "cells",
    "square",
    "table",
    "tint",
    "title",
    "two_decimals",
    "write",
]

TOKENS = ["the", "warm", "sunny", "day", "went", "by"]  # of the six rows that the pages share
CELL_WIDTH, CELL_HEIGHT = 0.68, 0.44


def tint(role: str, strength: float) -> str:
    """The ground of a cell: white at 0, the role's colour at 1, light enough for ink on it."""
    # Pale, the colour of weights would be taken for the rose of values: so it is more of an orange.
    hue = math.radians(55) if role == "weight" else oklch(ROLES[role])[2]
    most = 0.03 if role == "score" else 0.15
    strength = min(max(strength, 0.0), 1.0)
    red, green, blue = srgb(1 - 0.28 * strength, most * strength**0.85, hue)
    return f"#{red:02x}{green:02x}{blue:02x}"


SHADES = LinearSegmentedColormap.from_list("shades", [tint("weight", i / 8) for i in range(9)])


def two_decimals(value: float) -> str:
    """Write a number with two decimals and a true minus; −∞ as its sign.

    >>> two_decimals(-0.304), two_decimals(-0.0), two_decimals(float("-inf"))
    ('−0.30', '0.00', '−∞')
    """
    return number(value) if value == -float("inf") else f"{value:z.2f}".replace("-", "−")


def arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], color: str = INK
) -> None:
    """Draw an arrow."""
    style = {"arrowstyle": "->", "color": color, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops=style)


def box(
    axes: Axes, x: float, y: float, width: float, height: float, text: str, *, strong: bool = False
) -> None:
    """Draw a part of a model, shaded if strong."""
    color = tint("weight", 0.4) if strong else "#ffffff"
    axes.add_patch(Rectangle((x, y), width, height, facecolor=color, edgecolor=INK, linewidth=1))
    write(axes, x + width / 2, y + height / 2 + 0.01, text)


def square(
    axes: Axes,
    x: float,
    y: float,
    color: Any,
    text: str,
    width: float = 0.5,
    height: float = 0.36,
    size: float = 10.5,
) -> None:
    """Draw one cell of a table."""
    axes.add_patch(Rectangle((x, y), width, height, facecolor=color, edgecolor=LINE, linewidth=0.8))
    write(axes, x + width / 2, y + height / 2 + 0.01, text, fontsize=size)


def title(axes: Axes, x: float, y: float, role: str | None, name: str, note: str = "") -> None:
    """Write a table's name in its role's colour, and under it how it is made."""
    write(axes, x, y, name, "left", color=ROLES[role] if role else INK, weight="bold")
    write(axes, x, y + 0.2, note, "left", color=FAINT, fontsize=9.5)


def cells(
    axes: Axes,
    values: Tensor,
    role: str | None,
    *,
    at: tuple[float, float],
    strongest: float,
    width: float = 0.5,
    height: float = 0.34,
    size: float = 10.0,
) -> None:
    """Draw a matrix as numbers on a ground of its role, stronger for greater numbers.

    Args:
        axes: where to draw.
        values: rows and columns; −∞ is written and has no ground.
        role: one of `ROLES`, or None for white cells.
        at: the upper left corner.
        strongest: the number that gets the full colour.
        width: of a cell.
        height: of a cell.
        size: of the letters.
    """
    left, top = at
    for i, row in enumerate(values.tolist()):
        for j, value in enumerate(row):
            share = 0.0 if value == -float("inf") else abs(value) / strongest
            ground = tint(role, share) if role else "#ffffff"
            place = left + j * width, top + i * height
            square(axes, *place, ground, two_decimals(value), width, height, size)


def table(
    axes: Axes,
    weights: Tensor,
    *,
    at: tuple[float, float],
    rows: Sequence[str],
    columns: Sequence[str],
    captions: tuple[str, str],
    strongest: float = 1.0,
    text: Callable[[float], str] = "{:.2f}".format,
    shown: Tensor | None = None,
    sums: bool = False,
    width: float = CELL_WIDTH,
) -> float:
    """Draw weights as shaded cells.

    Args:
        axes: where to draw.
        weights: the table.
        at: its upper left corner.
        rows: a name for each row.
        columns: a name for each column.
        captions: what the rows and what the columns are; beginning with a role, in its colour.
        strongest: the weight that gets the full colour.
        text: what to write into a cell.
        shown: which cells to draw; by default those with a weight above 0.
        sums: write the sum of each row beside it.
        width: of a cell.

    Returns:
        Its lower edge.
    """
    left, top = at
    shown = weights > 0 if shown is None else shown
    for caption, x, align in ((captions[0], left - 0.1, "right"), (captions[1], left, "left")):
        color = ROLES.get(caption.partition(" ")[0].strip(",:"), FAINT)
        write(axes, x, top - 0.46, caption, align, color=color)
    for j, name in enumerate(columns):
        write(axes, left + (j + 0.5) * width, top - 0.16, name)
    for i, name in enumerate(rows):
        y = top + i * CELL_HEIGHT
        middle = y + CELL_HEIGHT / 2
        write(axes, left - 0.1, middle, name, "right")
        for j in shown[i].nonzero().flatten().tolist():
            weight = weights[i, j].item()
            color = tint("weight", weight / strongest)
            label = text(weight) if weight else "0"
            square(axes, left + j * width, y, color, label, width, CELL_HEIGHT)
        if sums:
            x = left + len(columns) * width + 0.15
            write(axes, x, middle, f"sum {weights[i].sum():.0f}", "left", color=FAINT)
    return top + len(rows) * CELL_HEIGHT
