"""Margins of a map: the entropy of each query, and what each key receives. Lengths in inches."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.pattern.readouts import Entropy, Received
from regard.view.plot.style import ACCENT, LINE, caption, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from regard.view.plot.pattern import HeadMaps

__all__ = ["GAP", "MARGIN", "draw_entropy", "draw_received"]

MARGIN, GAP = 0.6, 0.1  # height of a margin, and its distance to the map


def draw_entropy(ax: Axes, maps: HeadMaps, values: NDArray[Any], width: float) -> None:
    """Draw the entropy of each query to the right of a map."""
    beside = ax.inset_axes((1 + GAP / width, 0, MARGIN / width, 1))
    edges, means = _binned(values, maps.maps.shape[1], maps.queries)
    beside.fill_betweenx(edges, 0, means, step="post", color=ACCENT, linewidth=0)
    most = _limit(float(np.nanmax(means, initial=0.0)))
    beside.set(ylim=ax.get_ylim(), xlim=(0, most), yticks=[], label=Entropy().title)
    beside.xaxis.tick_top()
    beside.set_xticks([0, most], ["0", number(most)])
    _plain(beside, "left")
    first, last = beside.get_xticklabels()
    first.set_horizontalalignment("left")
    last.set_horizontalalignment("right")
    caption(beside, f"{Entropy().title}\nin nats", (0, 1), (0, 14), ha="left", va="bottom", size=7)


def draw_received(ax: Axes, maps: HeadMaps, values: NDArray[Any], height: float) -> None:
    """Draw what each key receives below a map; a bar far larger than the others is cut."""
    below = ax.inset_axes((0, -(GAP + MARGIN) / height, 1, MARGIN / height))
    columns = maps.maps.shape[2]
    edges, means = _binned(values, columns, maps.keys)
    below.fill_between(edges, 0, means, step="post", color=ACCENT, linewidth=0)
    most = _limit(_common(means[:-1]))
    below.set(xlim=ax.get_xlim(), ylim=(0, most), xticks=[], label=Received().title)
    below.set_yticks([0, most], ["0", number(most)])
    below.yaxis.tick_right()
    _plain(below, "bottom")
    first, last = below.get_yticklabels()
    first.set_verticalalignment("bottom")
    last.set_verticalalignment("top")
    per_key = "" if columns == maps.size[1] else "\nper key"
    label = f"{Received().title}{per_key}"
    caption(below, label, (0, 0.5), (-5, 0), ha="right", va="center", size=7)
    if (beyond := float(np.nanmax(means, initial=0.0))) > 1.1 * most:
        bar = int(np.nanargmax(means[:-1]))
        early = bar < columns / 2
        caption(
            below,
            f"↑ {number(beyond)}" if early else f"{number(beyond)} ↑",
            ((bar + early) / columns, 1),
            (3 if early else -3, 0),
            ha="left" if early else "right",
            va="top",
            size=7,
            color=ACCENT,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
        )


def _plain(ax: Axes, side: str) -> None:
    """Hide the frame of a margin except the side on which its bars stand."""
    ax.tick_params(length=2, pad=2, labelsize=7)
    ax.spines[:].set(visible=False)
    ax.spines[side].set(visible=True, color=LINE)
    ax.set_facecolor("none")


def _binned(
    values: NDArray[Any], count: int, shown: tuple[int, int]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the edges of bins and the mean in each, the last one twice to close the step."""
    edges = np.linspace(0, len(values), count + 1)
    total = np.concatenate([[0], np.cumsum(values, dtype=np.float64)])
    means = np.diff(np.interp(edges, np.arange(len(total)), total)) / np.diff(edges)
    return np.linspace(shown[0] - 0.5, shown[1] - 0.5, count + 1), np.append(means, means[-1])


def _common(values: NDArray[Any]) -> float:
    """Return the maximum height of a bar: the largest value, unless it is far above the others."""
    ranked = np.sort(values[np.isfinite(values)])
    if len(ranked) < 3 or ranked[-1] < 4 * ranked[-2]:
        return float(ranked[-1]) if len(ranked) else 0.0
    return float(ranked[-2])


def _limit(most: float) -> float:
    """Return the end of a margin's axis: the largest value, rounded up."""
    if not 0 < most < math.inf:
        return 1.0
    unit = 10.0 ** (math.floor(math.log10(most)) - 1)
    return float(f"{math.ceil(most / unit - 1e-9) * unit:.3g}")
