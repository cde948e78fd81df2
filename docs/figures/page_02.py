"""The pictures of page 2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drawing import CELL_WIDTH, FAINT, TOKENS, canvas, table, write

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure


def parameter_free(names: Mapping[str, Any]) -> Figure:
    """Page 2: the weights, and what each key receives."""
    figure, axes = canvas(6.6, 3.95)
    edge = table(
        axes,
        names["weights"],
        at=(1.35, 0.7),
        rows=TOKENS,
        columns=TOKENS,
        captions=("query ↓", "key →"),
        strongest=0.3,
        sums=True,
    )
    write(axes, 1.25, edge + 0.25, "received", "right", color=FAINT)
    for j, total in enumerate(names["weights"].sum(dim=0).tolist()):
        write(axes, 1.35 + (j + 0.5) * CELL_WIDTH, edge + 0.25, f"{total:.2f}", color=FAINT)
    return figure


PICTURES = {"parameter-free": parameter_free}
