"""What the pictures are drawn with: paper, ink and one colour. All lengths are in inches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle
from torch import Tensor

from regard.view.plot.style import ACCENT, FAINT, INK, LINE, STYLE, canvas, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "ACCENT",
    "CELL_HEIGHT",
    "CELL_WIDTH",
    "FAINT",
    "INK",
    "LINE",
    "SHADES",
    "STYLE",
    "arrow",
    "box",
    "canvas",
    "square",
    "table",
    "write",
]

SHADES = LinearSegmentedColormap.from_list("shades", ["#ffffff", "#fbc79b", "#f57c1f"])

CELL_WIDTH, CELL_HEIGHT = 0.68, 0.44


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Draw an arrow."""
    style = {"arrowstyle": "->", "color": INK, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops=style)


def box(
    axes: Axes, x: float, y: float, width: float, height: float, text: str, *, strong: bool = False
) -> None:
    """Draw a part of a model, shaded if strong."""
    color = SHADES(0.45) if strong else "white"
    axes.add_patch(Rectangle((x, y), width, height, facecolor=color, edgecolor=INK, linewidth=1))
    write(axes, x + width / 2, y + height / 2 + 0.01, text)


def square(
    axes: Axes, x: float, y: float, color: Any, text: str, width: float = 0.5, height: float = 0.36
) -> None:
    """Draw one cell of a table."""
    axes.add_patch(Rectangle((x, y), width, height, facecolor=color, edgecolor=LINE, linewidth=0.8))
    write(axes, x + width / 2, y + height / 2 + 0.01, text, fontsize=10.5)


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
        captions: what the rows and what the columns are.
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
    write(axes, left - 0.1, top - 0.46, captions[0], "right", color=FAINT)
    write(axes, left, top - 0.46, captions[1], "left", color=FAINT)
    for j, name in enumerate(columns):
        write(axes, left + (j + 0.5) * width, top - 0.16, name)
    for i, name in enumerate(rows):
        y = top + i * CELL_HEIGHT
        middle = y + CELL_HEIGHT / 2
        write(axes, left - 0.1, middle, name, "right")
        for j in shown[i].nonzero().flatten().tolist():
            weight = weights[i, j].item()
            color = SHADES(min(weight / strongest, 1.0))
            label = text(weight) if weight else "0"
            square(axes, left + j * width, y, color, label, width, CELL_HEIGHT)
        if sums:
            x = left + len(columns) * width + 0.15
            write(axes, x, middle, f"sum {weights[i].sum():.0f}", "left", color=FAINT)
    return top + len(rows) * CELL_HEIGHT
