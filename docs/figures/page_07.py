"""The pictures of page 7."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drawing import FAINT, arrow, canvas, square, tint, write

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure


def heads(names: Mapping[str, Any]) -> Figure:
    """Page 7: a table is cut into the tables of the heads, and put together again."""
    whole, parts = names["table"], names["heads"]
    count, positions, dim = parts.shape
    figure, axes = canvas(8.2, 3.3)
    write(axes, 0.5, 0.35, f"(T, E) = {tuple(whole.shape)}", "left")
    write(axes, 5.7, 0.35, f"(H, T, D) = {tuple(parts.shape)}", "left")
    for h in range(count):
        top, left, color = 0.65 + h * 0.86, 0.5 + h * dim * 0.5, tint("score", 0.45 * h)
        write(axes, left + 0.5, 1.3, f"head {h}", color=FAINT)
        write(axes, 6.85, top + 0.36, f"head {h}", "left", color=FAINT)
        for t in range(positions):
            for d in range(dim):
                number = str(int(parts[h, t, d]))
                square(axes, left + 0.5 * d, 1.5 + 0.36 * t, color, number)
                square(axes, 5.7 + 0.5 * d, top + 0.36 * t, color, number)
    for start, end, y, label in ((3.8, 5.4, 1.72, "split"), (5.4, 3.8, 2.12, "merge")):
        arrow(axes, (start, y), (end, y))
        write(axes, 4.6, y - 0.13, label)
    return figure


PICTURES = {"heads": heads}
