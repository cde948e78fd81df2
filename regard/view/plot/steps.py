"""One query's computation as a figure: a row of bars for each step, aligned by key.

Axes: D channels of query and key, Dv of value, S keys. Lengths are in inches.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from regard.steps import Step, Steps
from regard.view.plot.labels import check_tokens, drawable, families, skipped, ticks
from regard.view.plot.style import FAINT, INK, LINE, ROLES, Plot, number, on_paper

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

__all__ = ["plot_steps"]

_LEFT, _WIDTH, _RIGHT = 2.3, 5.2, 0.65
_PANEL, _GAP, _CHANNEL_LABELS = 0.62, 0.2, 0.22
_NUMBER = 0.3  # width of a number
_BARS = 96  # maximum number of bars that are drawn individually
_NAMED = 3  # number of the largest weights that are written
_SHARES = {"weights", "dropped"}
_UNSEEN = {"key", "value", "logsumexp"}  # not drawn: they have no row of the query
_CHANNELS = {"query": "D", "context": "Dv"}
_ROLES = {"weights": "weight", "dropped": "weight", "query": "query", "context": "context"}


def plot_steps(steps: Steps, query: int = -1, tokens: Sequence[str] | None = None) -> Figure:
    """Draw the steps from one query to its context; see `Steps.plot`."""
    *leading, queries, keys = steps.weights.shape
    if not steps.weights.numel():
        raise ValueError(f"there is nothing to draw in steps of shape {tuple(steps.weights.shape)}")
    if not -queries <= query < queries:
        raise IndexError(f"query is {query}, but must be below {queries}, the number of queries")
    check_tokens(tokens, keys)
    query %= queries
    rows = [(step, _row(step, query)) for step in steps if step.name not in _UNSEEN]
    hidden = np.isneginf(next(row for step, row in rows if step.name == "masked"))
    with on_paper():
        return _draw(rows, hidden, tokens, _title(steps, query, leading, tokens))


def _row(step: Step, query: int) -> NDArray[Any]:
    """Return the query's row in the first head of the first batch entry."""
    tensor: Tensor = step.tensor.detach()
    return tensor[(0,) * (tensor.ndim - 2)][query].double().cpu().numpy()


def _title(steps: Steps, query: int, leading: Sequence[int], tokens: Sequence[str] | None) -> str:
    queries, keys = steps.weights.shape[-2:]
    name = f" {drawable(tokens[query])}" if tokens and queries == keys else ""
    title = f"query {query}{name} of {queries}"
    if leading:
        sizes = " × ".join(map(str, leading))
        title += f"; head [{', '.join('0' for _ in leading)}] of {sizes}"
    return title


def _draw(
    rows: Sequence[tuple[Step, NDArray[Any]]],
    hidden: NDArray[Any],
    tokens: Sequence[str] | None,
    title: str,
) -> Figure:
    labels = ticks(tokens, (0, len(hidden)), _WIDTH, across=1.25 if tokens else 3)
    flat = tokens is None or labels.length < 0.85 * _WIDTH / len(hidden)
    names = [step.name for step, _ in rows]
    tops = [0.5]
    for name, following in pairwise(names):
        under = _CHANNEL_LABELS if name == "query" else 0.0
        if following == "context":
            under = _CHANNEL_LABELS if flat else labels.length + 0.15
        tops.append(tops[-1] + _PANEL + under + _GAP)
    width, height = _LEFT + _WIDTH + _RIGHT, tops[-1] + _PANEL + _CHANNEL_LABELS + 0.2
    figure = Plot.sized(width, height)
    style: dict[str, Any] = {"color": INK, "weight": "bold", "family": list(families())}
    figure.text(0.12 / width, 1 - 0.24 / height, title, size=9.5, va="center", **style)
    for (step, values), top in zip(rows, tops, strict=True):
        ax = figure.place(_LEFT, top, _WIDTH, _PANEL)
        after_mask = step.name in _SHARES or step.name == "masked"
        _draw_row(ax, step, values, hidden if after_mask else None)
        _describe(ax, step, len(values))
        if step.name in _CHANNELS:
            channels = ticks(None, (0, len(values)), _WIDTH, size=7, across=3)
            channels.put(ax.xaxis, pad=2)
            _name_axis(ax, "channel")
        elif step.name == names[-2]:
            labels.put(ax.xaxis, rotation=0 if flat else 90)
            _name_axis(ax, "key")
            if tokens and labels.step > 1:
                _name_axis(ax, f"\n{skipped(labels.step)}")
    return figure


def _draw_row(ax: Axes, step: Step, values: NDArray[Any], hidden: NDArray[Any] | None) -> None:
    ax.set_label(step.name)
    heights = np.where(np.isfinite(values), values, 0.0)
    shares = step.name in _SHARES
    color = ROLES[_ROLES.get(step.name, "score")]
    if len(values) <= _BARS:
        ax.bar(np.arange(len(values)), heights, width=0.8, color=color, linewidth=0)
    else:
        edges = np.arange(len(values) + 1) - 0.5
        ax.fill_between(edges, 0, np.append(heights, 0), step="post", color=color, linewidth=0)
    low, high = min(float(heights.min()), 0.0), max(float(heights.max()), 0.0)
    extent = high - low or 1.0
    above = (0.35 if shares else 0.04) * extent
    ax.set(xlim=(-0.5, len(values) - 0.5), ylim=(low - 0.04 * extent * (low < 0), high + above))
    ends = [end for end in (low, high) if abs(end) > 0.25 * extent]
    ax.set_xticks([])
    ax.set_yticks([0, *ends], [number(end) for end in (0, *ends)])
    ax.yaxis.tick_right()
    ax.tick_params(axis="y", length=2, pad=2, labelsize=7)
    ax.spines[:].set(visible=False)
    ax.axhline(0, color=LINE, linewidth=0.8, zorder=0)
    if hidden is not None:
        _shade_hidden(ax, hidden, named=step.name == "masked")
    if shares:
        _write_strongest(ax, heights)


def _write_strongest(ax: Axes, weights: NDArray[Any]) -> None:
    """Write the largest weights above their bars, as long as they do not overlap."""
    taken: list[int] = []
    for key in np.argsort(-weights, kind="stable")[:_NAMED].tolist():
        apart = min((abs(key - other) for other in taken), default=len(weights))
        if weights[key] > 0.05 * weights[taken[0] if taken else key] and (
            apart / len(weights) * _WIDTH > _NUMBER
        ):
            taken.append(key)
            place = (key + 0.5) / len(weights)
            ax.annotate(
                number(float(weights[key])),
                (key, float(weights[key])),
                xytext=(0, 1.5),
                textcoords="offset points",
                ha="left" if place < 0.03 else "right" if place > 0.97 else "center",
                va="bottom",
                fontsize=7,
                color=INK,
            )


def _shade_hidden(ax: Axes, hidden: NDArray[Any], *, named: bool) -> None:
    """Shade the ranges of keys that are hidden from the query."""
    steps = np.flatnonzero(np.diff(np.concatenate([[0], hidden.astype(int), [0]])))
    middle = float(np.mean(ax.get_ylim()))
    for first, stop in zip(steps[::2].tolist(), steps[1::2].tolist(), strict=True):
        ax.axvspan(first - 0.5, stop - 0.5, color=LINE, alpha=0.45, linewidth=0, zorder=0)
        if named and (stop - first) / len(hidden) * _WIDTH > _NUMBER:
            at = (first + stop - 1) / 2, middle
            ax.text(*at, "−∞", ha="center", va="center", color=FAINT, fontsize=8)


def _describe(ax: Axes, step: Step, count: int) -> None:
    """Write the step's name, size and caption at its left."""
    left = (0.12 - _LEFT) / _WIDTH
    lines = "\n".join(textwrap.wrap(step.meaning, 38))
    size = f"{_CHANNELS.get(step.name, 'S')} = {count}"
    common: dict[str, Any] = {"transform": ax.transAxes, "va": "top"}
    ax.text(left, 1.0, step.name, weight="bold", fontsize=9, color=INK, **common)
    ax.text(-0.2 / _WIDTH, 1.0, size, ha="right", fontsize=7.5, color=FAINT, **common)
    ax.text(left, 0.68, lines, fontsize=7, color=FAINT, linespacing=1.15, **common)


def _name_axis(ax: Axes, text: str) -> None:
    ax.annotate(
        text,
        (0, 0),
        xycoords="axes fraction",
        xytext=(-4, -3),
        textcoords="offset points",
        ha="right",
        va="top",
        fontsize=7,
        color=FAINT,
    )
