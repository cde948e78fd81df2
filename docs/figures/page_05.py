"""The pictures of page 5."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drawing import FAINT, ROLES, TOKENS, canvas, cells, table, title, write

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor


def causal(names: Mapping[str, Any]) -> Figure:
    """Page 5: the causal weights."""
    figure, axes = canvas(6.6, 3.6)
    table(
        axes,
        names["weights"],
        at=(1.35, 0.7),
        rows=TOKENS,
        columns=TOKENS,
        captions=("query ↓", "key →"),
        sums=True,
    )
    write(axes, 4.75, 1.36, "later keys:\nweight 0", color=FAINT)
    return figure


def steps(names: Mapping[str, Any]) -> Figure:
    """Page 5: every step of the head, from queries to contexts."""
    figure, axes = canvas(8.9, 8.35)
    of = names["steps"]
    for left, name, role, note in (
        (0.85, "query", "query", "x @ Wq"),
        (3.0, "key", "key", "x @ Wk"),
        (5.15, "value", "value", "x @ Wv"),
    ):
        _matrix(axes, getattr(of, name), name, role, note, (left, 0.75), 1.6)
    _over_keys(axes, of.scores, "scores", "score", "query · key", (0.85, 3.6), 2.6)
    _over_keys(axes, of.scaled, "scaled", "score", "scores / √2", (4.6, 3.6), 2.6)
    masked = "−∞ where the key is later than the query"
    _over_keys(axes, of.masked, "masked", "score", masked, (0.85, 6.45), 2.6)
    _over_keys(axes, of.weights, "weights", "weight", "softmax of each row", (4.6, 6.45), 1.0)
    _matrix(axes, of.context, "context", "context", "weights @ value", (7.65, 6.45), 1.6)
    return figure


HEIGHT, SIZE = 0.29, 9.0


def _over_keys(
    axes: Axes,
    values: Tensor,
    name: str,
    role: str,
    note: str,
    at: tuple[float, float],
    strongest: float,
) -> None:
    """A table with a row for each query and a column for each key."""
    left, top = at
    width = 0.46
    _rows(axes, left, top)
    title(axes, left, top - 0.66, role, name, note)
    for j, token in enumerate(TOKENS):
        color = ROLES["key"]
        write(axes, left + (j + 0.5) * width, top - 0.14, token, color=color, fontsize=SIZE)
    cells(
        axes, values, role, at=at, strongest=strongest, width=width, height=HEIGHT, size=SIZE - 0.5
    )


def _matrix(
    axes: Axes,
    values: Tensor,
    name: str,
    role: str,
    note: str,
    at: tuple[float, float],
    strongest: float,
) -> None:
    """A table with a row for each word and a column for each channel."""
    left, top = at
    is_result = role == "context"  # beside the weights, whose rows are named
    if not is_result:
        _rows(axes, left, top, ROLES[role])
    title(axes, left, top - (0.66 if is_result else 0.42), role, name, note)
    cells(axes, values, role, at=at, strongest=strongest, height=HEIGHT, size=SIZE)


def _rows(axes: Axes, left: float, top: float, color: str = ROLES["query"]) -> None:
    for i, token in enumerate(TOKENS):
        y = top + (i + 0.5) * HEIGHT
        write(axes, left - 0.08, y, token, "right", color=color, fontsize=SIZE)


PICTURES = {"causal": causal, "steps": steps}
