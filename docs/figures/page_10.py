"""The pictures of page 10."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from drawing import FAINT, INK, LINE, ROLES, arrow, canvas, tint, write
from forming import SHOWN, STORED
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes

_LEFT, _WIDTH, _HEIGHT, _STEP = 1.75, 0.86, 0.5, 1.05  # inches
_ROWS = (0.35, 1.75, 3.15)  # where the text stands, what head 1 and what head 2 leave


def induction(names: Mapping[str, Any]) -> Figure:
    """Both heads at work: what each row says, and from where the last one takes its guess."""
    text = names["text"]
    figure, axes = canvas(8.3, 3.95)
    captions = (
        ("the text", ""),
        ("after head 1", "which word came before"),
        ("after head 2", "what followed “red”"),
    )
    for top, (caption, note) in zip(_ROWS, captions, strict=True):
        write(axes, 0.05, top + 0.16, caption, "left", weight="bold")
        write(axes, 0.05, top + 0.4, note, "left", color=FAINT, fontsize=9)
    for place, word in enumerate(text):
        _cell(axes, 0, place, word)
        _cell(axes, 1, place, word, f"after {text[max(place - 1, 0)]}", strong=place == 2)
        if place:
            _look(axes, 0, place, place - 1, strong=place == 2)
    _cell(axes, 2, 5, "→ kite", strong=True)
    _look(axes, 1, 5, 2, strong=True)
    return figure


def _cell(
    axes: Axes, row: int, place: int, word: str, note: str = "", *, strong: bool = False
) -> None:
    x, y = _LEFT + place * _STEP, _ROWS[row]
    ground = tint("value", 0.5) if strong else "#ffffff"
    edge = INK if strong else LINE
    axes.add_patch(Rectangle((x, y), _WIDTH, _HEIGHT, facecolor=ground, edgecolor=edge))
    write(axes, x + _WIDTH / 2, y + (0.16 if note else _HEIGHT / 2), word)
    write(axes, x + _WIDTH / 2, y + 0.36, note, color=INK if strong else FAINT, fontsize=9)


def _look(axes: Axes, row: int, query: int, key: int, *, strong: bool) -> None:
    """An arrow along which a query takes something from a key."""
    start = _LEFT + key * _STEP + _WIDTH / 2, _ROWS[row] + _HEIGHT + 0.04
    end = _LEFT + query * _STEP + _WIDTH / 2, _ROWS[row + 1] - 0.05
    arrow(axes, start, end, ROLES["weight"] if strong else LINE)


def forming(names: Mapping[str, Any]) -> Figure:
    """The loss and both weights over the updates, of the training runs that are stored."""
    del names  # training differs between machines, so its numbers are stored
    measured = json.loads(STORED.read_text("utf-8"))
    figure = Figure(figsize=(8.3, 3.1), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, color in (("one layer", FAINT), ("two layers", ROLES["weight"])):
        for seed, rows in enumerate(measured[name]):
            updates, losses, _, _ = zip(*rows, strict=True)
            shown = {"linewidth": 2.2, "label": name} if seed == SHOWN else {"linewidth": 0.8}
            left.plot(updates, losses, color=color, **shown)
    left.set(title="loss, nats a thing", xlabel="updates", ylim=(0, 3.1))
    right.set(title="weight, two layers", xlabel="updates", ylim=(0, 1.4))
    right.set_yticks([0, 0.25, 0.5, 0.75, 1])
    curves = (
        (2, "head 1, on the token before", ROLES["query"]),
        (3, "head 2, on the thing to come", ROLES["weight"]),
    )
    for column, name, color in curves:
        for seed, rows in enumerate(measured["two layers"]):
            shown = {"linewidth": 2.2, "label": name} if seed == SHOWN else {"linewidth": 0.8}
            right.plot(
                [row[0] for row in rows], [row[column] for row in rows], color=color, **shown
            )
    for axes in (left, right):
        axes.legend(frameon=False, loc="upper right")
    return figure


PICTURES = {"induction": induction, "forming": forming}
