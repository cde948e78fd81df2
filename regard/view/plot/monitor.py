"""The readings of a monitor as a figure: heads down, updates across. Lengths are in inches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import LogNorm, Normalize

from regard.lens.monitor import Alarm, Head, Monitor
from regard.view.plot.colour import shades
from regard.view.plot.style import FAINT, INK, LINE, Plot, caption, number, on_paper

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colorbar import Colorbar
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

__all__ = ["plot_monitor"]

_LEFT, _TOP, _RIGHT, _BOTTOM = 0.85, 0.6, 0.95, 0.5
_WIDTH = 5.4
_ROW, _TALLEST, _HIGHEST = 0.2, 0.4, 7.0  # row height with many heads, with few; total height
_SCALE = 1.4  # minimum height of the colour bar
_LABELLED = 40  # maximum number of heads that are labelled
_TICKS = 7
_WIDE_RANGE = 30.0  # from such values and ratios on, the scale is logarithmic
_FAINTEST = 0.1  # start of a logarithmic scale; smaller and negative values have its colour


def plot_monitor(monitor: Monitor, quantity: str) -> Figure:
    """Draw a quantity; see `Monitor.plot`."""
    values = monitor.values(quantity).T.numpy()  # (N, U)
    rows = len(values)
    height = min(_HIGHEST, max(rows * _ROW, min(rows * _TALLEST, _SCALE)))
    with on_paper():
        figure = Plot.sized(_LEFT + _WIDTH + _RIGHT, _TOP + max(height, _SCALE) + _BOTTOM)
        axes = figure.place(_LEFT, _TOP, _WIDTH, height)
        least, most, is_wide = _range(values)
        image = axes.imshow(
            np.ma.masked_invalid(values),
            cmap=shades(),
            norm=(LogNorm if is_wide else Normalize)(least, most, clip=True),
            aspect="auto",
            interpolation="none",
        )
        _write_updates(axes, monitor.updates)
        _write_heads(axes, monitor)
        alarms = _mark_alarms(axes, monitor, quantity)
        scale_axes = figure.place(_LEFT + _WIDTH + 0.18, _TOP, 0.12, max(height, _SCALE))
        bar = figure.colorbar(image, cax=scale_axes)
        _write_scale(bar, least, most, is_wide=is_wide)
        bounds = {alarm.bound for alarm in alarms if alarm.baseline is None}
        for bound in (one for one in bounds if least < one < most):
            for color, width in (("white", 3.0), (INK, 1.2)):  # visible on light and dark colours
                scale_axes.axhline(bound, color=color, linewidth=width)
        axes.spines[:].set(visible=True, color=LINE)
        caption(axes, _title(monitor, quantity), (0, 1), (0, 24), size=9, color=INK)
        if alarms:
            caption(axes, _key(alarms), (0, 1), (0, 10))
    return figure


def _range(values: NDArray[np.float64]) -> tuple[float, float, bool]:
    """Return start and end of the colour scale, and whether it is logarithmic."""
    finite = values[np.isfinite(values)]
    least, most = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    start = max(float(finite[finite > 0].min(initial=most)), _FAINTEST)
    if most > _WIDE_RANGE * start and most > _WIDE_RANGE:
        return start, most, True
    least = min(least, 0.0)
    return least, most if most > least else 1.0, False


def _write_updates(axes: Axes, updates: tuple[int, ...]) -> None:
    """Label columns at round update numbers."""
    places: Sequence[int] = [0]
    for step in _round_steps(updates[-1]):
        round_ones = [place for place, update in enumerate(updates) if update % step == 0]
        if len(round_ones) <= _TICKS:
            places = round_ones
            break
    axes.set_xticks(places, [f"{updates[place]:,}" for place in places])
    axes.tick_params(axis="x", length=2, labelsize=8)
    axes.set_xlabel("update", fontsize=8, color=FAINT)


def _round_steps(most: int) -> Iterator[int]:
    """Yield 1, 2, 5, 10, 20, ... up to a number."""
    power = 1
    while power <= most:
        yield from (power, 2 * power, 5 * power)
        power *= 10


def _write_heads(axes: Axes, monitor: Monitor) -> None:
    """Label layers, and heads if there is room, and draw lines between layers."""
    heads = monitor.heads
    written = len(heads) <= _LABELLED
    axes.set_yticks(
        range(len(heads)) if written else [], [str(h.head) for h in heads] if written else []
    )
    axes.tick_params(axis="y", length=0, labelsize=7)
    row = 0
    for (kind, layer), own in groupby(heads, key=lambda head: (head.kind, head.layer)):
        count = len(list(own))
        name = f"{layer}" if kind == "self" else f"{kind} {layer}"
        caption(
            axes,
            f"layer {name}" if row == 0 else name,
            (0, 1 - (row + count / 2) / len(heads)),
            (-20 if written else -6, 0),
            ha="right",
            va="center",
        )
        if row:
            axes.axhline(row - 0.5, color=LINE, linewidth=0.8)
        row += count


def _mark_alarms(axes: Axes, monitor: Monitor, quantity: str) -> list[Alarm]:
    """Mark the alerts of this quantity, and return their alarms."""
    column = {update: place for place, update in enumerate(monitor.updates)}
    row = {head: place for place, head in enumerate(monitor.heads)}
    alerts = [alert for alert in monitor.alerts if alert.alarm.quantity == quantity]
    axes.scatter(
        [column[alert.update] for alert in alerts],
        [row[Head(alert.kind, alert.layer, alert.head)] for alert in alerts],
        s=26 if len(row) <= _LABELLED else 9,
        facecolor="white",
        edgecolor=INK,
        linewidth=0.9,
        zorder=3,
        clip_on=False,
    )
    return list(dict.fromkeys(alert.alarm for alert in alerts))


def _write_scale(bar: Colorbar, least: float, most: float, *, is_wide: bool) -> None:
    """Label the colour bar."""
    if is_wide:
        powers = range(math.ceil(math.log10(least)), math.floor(math.log10(most)) + 1)
        ticks = [10.0**power for power in powers]
    else:
        ticks = [least, (least + most) / 2, most]
    bar.outline.set(edgecolor=LINE, linewidth=0.6)
    bar.set_ticks(ticks)
    bar.minorticks_off()
    bar.ax.set_yticklabels([number(tick) for tick in ticks])
    bar.ax.tick_params(length=2, labelsize=7)


def _title(monitor: Monitor, quantity: str) -> str:
    updates = monitor.updates
    return f"{quantity} of {len(monitor.heads)} heads, {len(updates)} readings"


def _key(alarms: list[Alarm]) -> str:
    return f"○ alarm: {'; '.join(map(str, alarms))}"
