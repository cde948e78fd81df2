"""The picture of page 15."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drawing import FAINT, INK, canvas, square, tint, write

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

_CELL = 0.19


def all_heads(names: Mapping[str, Any]) -> Figure:
    """Every head of the model by three scores, layers across and heads down."""
    heads, share = names["heads"], names["share"]
    figure, axes = canvas(7.1, 7.2)
    for panel, (score, title) in enumerate(
        (
            ("previous_token", "on the token before"),
            ("induction", "on what followed the same token"),
            ("first_token", "on the first token"),
        )
    ):
        left, top = 0.9, 0.7 + panel * 2.3
        write(axes, left, top - 0.4, title, "left", color=INK, fontsize=9.5)
        style = {"color": FAINT, "fontsize": 8.5}
        for at in (0, 10, 20, 29):
            label = f"layer {at}" if not at else str(at)
            write(axes, left + (at + 0.5) * _CELL, top - 0.12, label, **style)
        for at in (0, 4, 8):
            label = f"head {at}" if not at else str(at)
            write(axes, left - 0.07, top + (at + 0.5) * _CELL, label, "right", **style)
        for one in heads:
            part = share(one, score)
            ground = tint("weight", round(part, 2))
            corner = left + one.layer * _CELL, top + one.head * _CELL
            text = f"{part:.1f}" if part >= 0.5 and score != "first_token" else ""
            square(axes, *corner, ground, text, _CELL, _CELL, 6.5)
    return figure


PICTURES = {"all-heads": all_heads}
