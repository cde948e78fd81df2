"""The picture of page 16."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from drawing import FAINT, INK, LINE, ROLES, canvas, tint, write
from matplotlib.patches import Rectangle
from pages import FOLDER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CARD = FOLDER.parent / "regard" / "gpt" / "shipped" / "README.md"
_ROW = re.compile(  # of the card's table: kind, links, right, head, weight ±, …, Δ, …, layer's Δ, Δ
    r"^(\w+) +\d+ +[\d.]+ +(\d\.\d) +([\d.]+) ± .+?(−[\d.]+) .+?(−[\d.]+) +−[\d.]+$",
    flags=re.MULTILINE,
)
_LEFT, _TOP, _HEIGHT, _LENGTH = 1.25, 0.85, 0.34, 1.75  # inches
_PANELS = ("looked at: its weight", "lost without this look", "lost without the layer")


def looked_at(names: Mapping[str, Any]) -> Figure:
    """Of each kind of link: the weight, and what is lost without the look and without the layer."""
    del names  # they are of a hundred stories, and stand on the model's card
    rows = sorted(_rows(), key=lambda row: -row[2])
    figure, axes = canvas(8.6, _TOP + len(rows) * _HEIGHT + 0.15)
    write(axes, 0.05, _TOP - 0.3, "kind, and head", "left", color=FAINT)
    for panel, name in enumerate(_PANELS):
        color = ROLES["weight"] if panel == 0 else INK
        write(axes, _x(panel), _TOP - 0.3, name, "left", color=color, weight="bold")
    for number, (kind, head, *shares) in enumerate(rows):
        y = _TOP + number * _HEIGHT
        write(axes, 0.05, y + 0.13, kind, "left")
        write(axes, _LEFT - 0.02, y + 0.13, head, "right", color=FAINT, fontsize=9)
        for panel, share in enumerate(shares):
            _bar(axes, _x(panel), y, share, "weight" if panel == 0 else "context")
    return figure


def _rows() -> list[tuple[str, str, float, float, float]]:
    """Kind, head that looks most, its weight, and both losses as shares of the probability."""
    return [
        (kind, head, float(weight), _lost(alone), _lost(layer))
        for kind, head, weight, alone, layer in _ROW.findall(CARD.read_text("utf-8"))
    ]


def _lost(change: str) -> float:
    """The share that is lost where the log-probability changes by this."""
    return 1 - math.exp(float(change.replace("−", "-")))


def _x(panel: int) -> float:
    return _LEFT + 0.12 + panel * (_LENGTH + 0.7)


def _bar(axes: Axes, x: float, y: float, share: float, role: str) -> None:
    ground = {"facecolor": "#ffffff", "edgecolor": LINE, "linewidth": 0.8}
    axes.add_patch(Rectangle((x, y), _LENGTH, 0.26, **ground))
    if share >= 0.005:
        color = tint(role, 0.75)
        axes.add_patch(Rectangle((x, y), _LENGTH * share, 0.26, facecolor=color, edgecolor="none"))
    write(axes, x + _LENGTH + 0.06, y + 0.14, f"{share:z.2f}", "left", fontsize=9.5)


PICTURES = {"looked-at": looked_at}
