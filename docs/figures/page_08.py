"""The picture of page 8."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drawing import canvas, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure


def cross(names: Mapping[str, Any]) -> Figure:
    """Which word of the source each word that is written comes from."""
    figure, axes = canvas(6.6, 3.6)
    table(
        axes,
        names["weights"],
        at=(1.35, 0.75),
        rows=names["english"],
        columns=names["french"],
        captions=("query ↓", "key, of the source →"),
        sums=True,
        width=1.05,
    )
    return figure


PICTURES = {"cross": cross}
