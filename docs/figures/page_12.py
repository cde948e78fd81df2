"""The picture of page 12."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drawing import FAINT, canvas, square, tint, write

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

_TOKENS, _CELL = 14, 0.15


def caches(names: Mapping[str, Any]) -> Figure:
    """The keys that each query sees, and those that the last one needs in the cache."""
    figure, axes = canvas(8.0, 3.0)
    masks = {
        "all keys": names["full_mask"],
        "window of 8": names["in_window"],
        "first token and window of 8": names["with_first"],
    }
    for panel, (name, mask) in enumerate(masks.items()):
        left = 0.3 + panel * 2.6
        write(axes, left, 0.2, name, "left")
        visible = mask[:_TOKENS, :_TOKENS]
        for i, j in visible.nonzero().tolist():
            color = tint("key" if i == _TOKENS - 1 else "weight", 0.7)
            square(axes, left + j * _CELL, 0.38 + i * _CELL, color, "", _CELL, _CELL)
        kept = int(visible[-1].sum())
        note = f"the last of {_TOKENS} queries needs {kept} keys"
        write(axes, left, 0.38 + (_TOKENS + 0.9) * _CELL, note, "left", color=FAINT, fontsize=9)
    legend = "rows: queries; columns: keys that they see"
    write(axes, 0.3, 2.85, legend, "left", color=FAINT)
    return figure


PICTURES = {"caches": caches}
