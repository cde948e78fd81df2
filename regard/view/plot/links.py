"""Links as a figure: axes for each kind, a dot for each head. Lengths are in inches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from regard.view.plot.style import ACCENT, FAINT, INK, LINE, Plot, caption, on_paper

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from regard.gpt import LinkEffects

__all__ = ["plot_link_effects"]

_LEFT, _TOP, _RIGHT, _BOTTOM = 0.7, 0.6, 0.3, 0.6
_SIDE, _ACROSS, _DOWN = 1.7, 0.5, 0.6  # side of the axes of a kind, and the gaps between them
_COLUMNS = 4
_LEAST = 0.1  # minimum extent of the axis below 0, in nats, so that noise looks small


def plot_link_effects(effects: LinkEffects, kinds: Sequence[str] | None = None) -> Figure:
    """Draw links; see `LinkEffects.plot`."""
    names = list(effects.counts) if kinds is None else list(kinds)
    for kind in names:
        if kind not in effects.counts:
            raise ValueError(
                f"kinds names {kind!r}, but the links are of {', '.join(map(repr, effects.counts))}"
            )
    columns, rows = min(len(names), _COLUMNS), -(-len(names) // _COLUMNS)
    with on_paper():
        figure = Plot.sized(
            _LEFT + columns * (_SIDE + _ACROSS) - _ACROSS + _RIGHT,
            _TOP + rows * (_SIDE + _DOWN) - _DOWN + _BOTTOM,
        )
        for place, kind in enumerate(names):
            row, column = divmod(place, _COLUMNS)
            left, top = _LEFT + column * (_SIDE + _ACROSS), _TOP + row * (_SIDE + _DOWN)
            _panel(figure.place(left, top, _SIDE, _SIDE), effects, kind)
        figure.supxlabel("weight on the deciding word", fontsize=8, color=FAINT, y=0.02)
        figure.supylabel("Δ log-probability without it, nats", fontsize=8, color=FAINT, x=0.01)
    return figure


def _panel(axes: Axes, effects: LinkEffects, kind: str) -> None:
    """Draw the heads of a kind, and name the ones with the largest weight and effect."""
    number = list(effects.counts).index(kind)
    weights = effects.weights
    weight = weights.spans.mean[number].flatten()
    change = effects.log_probability.heads.mean[number].flatten()
    axes.scatter(weight, change, s=10, color=ACCENT, linewidths=0, clip_on=False, zorder=3)
    axes.axhline(0, color=LINE, linewidth=0.6)
    axes.set_xlim(0, 1)
    low, high = float(change.nan_to_num().min()), float(change.nan_to_num().max())
    axes.set_ylim(1.1 * min(low, -_LEAST), 1.1 * max(high, 0.1 * _LEAST))
    axes.tick_params(length=2, labelsize=7)
    names = [f"{layer}.{head}" for layer in weights.layers for head in weights.heads]
    extremes = {
        int((-weight).nan_to_num(nan=float("inf")).argmin()),
        int(change.nan_to_num(nan=float("inf")).argmin()),
    }
    for head in sorted(extremes):
        axes.annotate(
            names[head],
            (float(weight[head]), float(change[head])),
            xytext=(3, 3),
            textcoords="offset points",
            fontsize=7,
            color=INK,
        )
    caption(axes, f"{kind}, {effects.counts[kind]} links", (0, 1), (0, 4))
