"""Effects as a figure: a cell per head or position, a bar per span of keys. Lengths in inches."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import Normalize

from regard.lens import Effects
from regard.view.plot.colour import two_sided
from regard.view.plot.labels import drawable, families, inked, ticks
from regard.view.plot.style import FAINT, INK, LINE, Plot, number, on_paper, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

__all__ = ["plot_effects"]

_LEFT, _TOP, _RIGHT, _BOTTOM = 0.7, 0.5, 0.3, 0.35
_CELL, _LINE = 0.5, 0.17
_EDGE, _TITLE, _LETTER = 0.12, 0.15, 0.09  # title's margin and line height; maximum letter width
_WRITTEN = 24  # maximum number of heads whose values are written
_KEYS_LEFT, _BARS = 1.5, 3.6
_ROWS = 24  # maximum number of heads at positions


def plot_effects(effects: Effects) -> Figure:
    """Draw effects; see `Effects.plot`."""
    values = effects.values.numpy()
    most = float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
    norm = Normalize(-most, most)
    with on_paper():
        if effects.over in ("keys", "spans", "edges"):
            return _keys(effects, values, norm)
        return (_heads if effects.over == "heads" else _positions)(effects, values, norm)


def _titled(effects: Effects, width: float, height: float) -> tuple[Plot, float]:
    """Make a figure with its title; return it and the top of the content."""
    title = (
        f"effect on the {effects.target}",
        f"{_about(effects)}; as it is: " + number(effects.unchanged),
    )
    letters = int((width - 2 * _EDGE) / _LETTER)
    lines = [line for part in title for line in textwrap.wrap(inked(part), letters)]
    top = _TOP + len(lines) * _TITLE
    figure = Plot.sized(width, top + height + _BOTTOM)
    figure.text(
        _EDGE / width,
        1 - _EDGE / figure.get_figheight(),
        "\n".join(lines),
        va="top",
        fontsize=8,
        linespacing=_TITLE * 72 / 8 / 1.2,
        color=INK,
        parse_math=False,
        fontfamily=["DejaVu Sans", *families()],
    )
    return figure, top


def _about(effects: Effects) -> str:
    """Say what was changed."""
    each = {
        "heads": "head",
        "keys": "token",
        "spans": "span",
        "edges": "edge",
        "positions": "layer at a position",
        "both": "head at a position",
    }[effects.over]
    by = "" if effects.by in (None, "zero") else f", by {effects.by}"
    if effects.method == "gradient":
        return f"by gradient, approximate{by}"
    if effects.method == "ablation":
        return f"without each {each}{by}"
    assert effects.other is not None, "patching has another run"
    shown = len(effects.labels[0]) * len(effects.labels[1])
    largest = f", the {_ROWS} largest heads" if effects.over == "both" and shown > _ROWS else ""
    return f"each {each} with the {effects.by}, which has {number(effects.other)}{largest}"


def _heads(effects: Effects, values: NDArray[np.float64], norm: Normalize) -> Figure:
    layers, heads = effects.labels
    width, height = len(heads) * _CELL, len(layers) * 0.7 * _CELL
    figure, top = _titled(effects, max(_LEFT + width + _RIGHT, 5.2), height)
    axes = figure.place(_LEFT, top, width, height)
    axes.imshow(values, cmap=two_sided(), norm=norm, aspect="auto", interpolation="none")
    axes.set_xticks(range(len(heads)), [str(head) for head in heads])
    axes.set_yticks(range(len(layers)), [str(layer) for layer in layers])
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set(visible=True, color=LINE)
    axes.set_xlabel("head", fontsize=8, color=FAINT)
    axes.set_ylabel("layer", fontsize=8, color=FAINT)
    if len(heads) <= _WRITTEN:
        _write_values(axes, values, norm)
    return figure


def _positions(effects: Effects, values: NDArray[np.float64], norm: Normalize) -> Figure:
    rows = [str(layer) for layer in effects.labels[0]]
    if effects.over == "both":
        values = values.reshape(-1, values.shape[-1])
        most = np.nan_to_num(np.abs(values), nan=-1.0).max(axis=1)
        chosen = np.sort(np.argsort(-most, kind="stable")[:_ROWS])
        places = [f"{layer}·{head}" for layer in rows for head in effects.labels[1]]
        rows, values = [places[row] for row in chosen], values[chosen]
    count = values.shape[1]
    size = _CELL * min(1.0, _WRITTEN / count)  # of a long text, narrower cells without numbers
    width, height = count * size, len(rows) * 0.7 * _CELL
    tokens = [str(name).partition(" ")[2] or str(name) for name in effects.labels[-1]]
    names = ticks(tokens, (0, count), width)
    figure, top = _titled(effects, max(_LEFT + width + _RIGHT, 5.2), height + names.length)
    axes = figure.place(_LEFT, top, width, height)
    axes.imshow(values, cmap=two_sided(), norm=norm, aspect="auto", interpolation="none")
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(length=0, labelsize=8)
    names.put(axes.xaxis, rotation=90)
    axes.spines[:].set(visible=True, color=LINE)
    axes.set_ylabel("head" if effects.over == "both" else "layer", fontsize=8, color=FAINT)
    if size == _CELL:
        _write_values(axes, values, norm)
    return figure


def _write_values(axes: Axes, values: NDArray[np.float64], norm: Normalize) -> None:
    """Write the number of each cell into it."""
    for (row, column), value in np.ndenumerate(values):
        if not np.isnan(value):
            ink = "white" if abs(norm(value) - 0.5) > 0.4 else INK
            write(axes, column, row, number(float(f"{value:.2g}")), color=ink, fontsize=7)


def _keys(effects: Effects, values: NDArray[np.float64], norm: Normalize) -> Figure:
    height = len(values) * _LINE
    figure, top = _titled(effects, _KEYS_LEFT + _BARS + _RIGHT, height)
    axes = figure.place(_KEYS_LEFT, top, _BARS, height)
    rows = np.arange(len(values))
    colours = two_sided()(norm(values))
    axes.barh(rows, values, height=0.8, color=colours, edgecolor=LINE, linewidth=0.4)
    axes.axvline(0, color=FAINT, linewidth=0.6)
    axes.set(ylim=(len(values) - 0.5, -0.5), xlim=(1.05 * norm.inverse(0), 1.05 * norm.inverse(1)))
    axes.set_yticks(rows, [_label(str(name)) for name in effects.labels[0]])
    axes.tick_params(axis="y", length=0, labelsize=8)
    axes.tick_params(axis="x", length=2, labelsize=7)
    axes.spines[:].set(visible=False)
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
        label.set_fontfamily(list(families()))
    return figure


def _label(name: str) -> str:
    """Label keys by their positions, and their text as far as it fits."""
    where, _, tokens = name.partition(" ")
    return f"{where} {drawable(tokens)}" if tokens else where
