"""The pictures of page 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drawing import canvas, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure


def averaging(names: Mapping[str, Any]) -> Figure:
    """Page 1: the table of weights, as fractions."""
    positions = [str(i) for i in range(8)]
    figure, axes = canvas(7.0, 4.4)
    table(
        axes,
        names["weights"],
        at=(1.15, 0.7),
        rows=positions,
        columns=positions,
        captions=("position ↓", "weight of row →"),
        text=lambda w: f"1/{round(1 / w)}" if w < 1 else "1",
    )
    return figure


PICTURES = {"averaging": averaging}
