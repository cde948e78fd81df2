"""The picture of page 3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drawing import FAINT, INK, ROLES, TOKENS, arrow, canvas, cells, title, write

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

ROW = 1  # “warm”, which the page follows
TOP, HEIGHT = 1.95, 0.36


def head(names: Mapping[str, Any]) -> Figure:
    """One head at one word: what it asks, what answers, and what it takes home."""
    x, steps = names["x"], names["steps"]
    figure, axes = canvas(8.8, 5.3)
    middle = TOP + len(TOKENS) * HEIGHT / 2
    bottom = TOP + len(TOKENS) * HEIGHT
    style: dict[str, Any] = {"height": HEIGHT}

    for i, token in enumerate(TOKENS):
        weight = "bold" if i == ROW else "normal"
        write(axes, 0.78, TOP + (i + 0.5) * HEIGHT, token, "right", weight=weight)
    title(axes, 0.88, TOP - 0.45, None, "x", "a row for each word")
    cells(axes, x, None, at=(0.88, TOP), strongest=1, width=0.47, **style)

    title(axes, 3.1, 0.3, "query", "query of “warm”", f"{TOKENS[ROW]} @ Wq")
    cells(axes, steps.query[ROW, None], "query", at=(3.1, 0.68), strongest=1.6, **style)
    arrow(axes, (2.34, TOP + (ROW + 0.4) * HEIGHT), (3.02, 0.9), ROLES["query"])
    title(axes, 3.1, TOP - 0.45, "key", "key", "x @ Wk")
    cells(axes, steps.key, "key", at=(3.1, TOP), strongest=1.6, **style)
    arrow(axes, (2.34, middle), (3.02, middle), ROLES["key"])

    title(axes, 4.75, TOP - 0.45, "score", "score", "query · key")
    scores = steps.scores[ROW, :, None]
    cells(axes, scores, "score", at=(4.75, TOP), strongest=2, width=0.62, **style)
    arrow(axes, (4.16, middle), (4.68, middle))
    arrow(axes, (4.16, 0.86), (5.06, TOP - 0.62))

    title(axes, 6.1, TOP - 0.45, "weight", "weight", "softmax(score / √2)")
    weights = steps.weights[ROW, :, None]
    cells(axes, weights, "weight", at=(6.1, TOP), strongest=0.3, width=0.62, **style)
    arrow(axes, (5.44, middle), (6.03, middle))
    write(axes, 6.41, bottom + 0.2, "sum 1", color=FAINT, fontsize=9.5)

    title(axes, 7.6, TOP - 0.45, "value", "value", "x @ Wv")
    cells(axes, steps.value, "value", at=(7.6, TOP), strongest=1.6, **style)
    for i in range(len(TOKENS)):
        write(axes, 7.16, TOP + (i + 0.5) * HEIGHT, "×", color=INK)

    arrow(axes, (8.1, bottom + 0.06), (8.1, bottom + 0.42), ROLES["context"])
    cells(
        axes, steps.context[ROW, None], "context", at=(7.6, bottom + 0.48), strongest=1.6, **style
    )
    y = bottom + 0.48 + HEIGHT / 2
    write(axes, 7.5, y, "context of “warm”", "right", color=ROLES["context"], weight="bold")
    write(axes, 7.5, y + 0.22, "weight × value, added up", "right", color=FAINT, fontsize=9.5)
    note = "The other five words do the same,\neach with its own query:"
    write(axes, 0.1, y - 0.05, note, "left", color=FAINT, fontsize=9.5)
    sizes = f"{tuple(steps.scores.shape)} scores and weights."
    write(axes, 0.1, y + 0.24, sizes, "left", color=FAINT, fontsize=9.5)
    return figure


PICTURES = {"head": head}
