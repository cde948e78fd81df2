"""The pictures of page 6."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drawing import arrow, canvas, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure


def dropout(names: Mapping[str, Any]) -> Figure:
    """Page 6: the weights, and what one draw leaves of them."""
    positions = [str(i) for i in range(6)]
    figure, axes = canvas(8.6, 3.6)
    for left, title, values in (
        (0.45, "weights", names["weights"]),
        (4.95, "dropped: one draw with p = ½", names["dropped"]),
    ):
        table(
            axes,
            values,
            at=(left, 0.7),
            rows=positions,
            columns=positions,
            captions=("", title),
            shown=names["weights"] > 0,
            width=0.56,
        )
    arrow(axes, (4.05, 2.02), (4.5, 2.02))
    return figure


PICTURES = {"dropout": dropout}
