"""The picture of page 15."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drawing import FAINT, INK, canvas, square, tint, write

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

_CELL = 0.19


def all_heads(names: Mapping[str, Any]) -> Figure:
    """Every head of the model by three scores, layers down and heads across."""
    scored = names["scored"]
    figure, axes = canvas(8.7, 3.3)
    for panel, (score, title) in enumerate(
        (
            ("previous_token", "on the token before"),
            ("induction", "on what followed the same token"),
            ("first_token", "on the first token"),
        )
    ):
        left, top = 0.75 + panel * 2.7, 0.75
        write(axes, left, 0.25, title, "left", color=INK, fontsize=9.5)
        for at in (0, 5, 11):
            middle = (at + 0.5) * _CELL
            style = {"color": FAINT, "fontsize": 8.5}
            write(
                axes,
                left - 0.07,
                top + middle,
                f"layer {at}" if not panel else str(at),
                "right",
                **style,
            )
            write(axes, left + middle, top - 0.12, f"head {at}" if not at else str(at), **style)
        for one in scored:
            share = getattr(one, score)
            ground = tint("weight", round(share, 2))
            corner = left + one.head * _CELL, top + one.layer * _CELL
            text = f"{share:.1f}" if share >= 0.5 and score != "first_token" else ""
            square(axes, *corner, ground, text, _CELL, _CELL, 6.5)
    return figure


PICTURES = {"all-heads": all_heads}
