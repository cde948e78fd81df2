"""A pattern as a figure: one head with margins, or several heads side by side.

Axes: H heads, L queries, S keys. Lengths are in inches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from regard.pattern import Pattern
from regard.pattern.index import span
from regard.pattern.readouts import Entropy, Image, Received
from regard.pattern.weighted import WeightedPattern
from regard.view.plot.colour import WeightNorm, colours_of, scale_for, usual
from regard.view.plot.labels import check_tokens, skipped, ticks
from regard.view.plot.margins import GAP, MARGIN, draw_entropy, draw_received
from regard.view.plot.style import (
    FAINT,
    INK,
    LINE,
    Plot,
    caption,
    crisp,
    interpolation,
    number,
    on_paper,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from regard.view.plot.colour import ScaleKind
    from regard.view.plot.labels import Ticks

__all__ = ["HeadMaps", "draw_maps", "plot_pattern", "read_maps"]

PIXELS, SMALL_PIXELS = 384, 128
"""Maximum pixels per side, for one head and for each of several."""

_SIDE, _SMALL_SIDE = 4.6, 1.55  # maximum side of a map
_CELL = 0.46  # maximum side of a cell, with room for its number
_WRITTEN = 0.3  # minimum side of a cell whose number is written
_BAR = 0.13  # width of the colour bar


@dataclass(frozen=True)
class HeadMaps:
    """The data of a figure of some heads of one layer."""

    maps: NDArray[Any]
    """Mean weight of each pixel, (H, rows, columns)."""
    names: list[str]
    queries: tuple[int, int]
    keys: tuple[int, int]
    entropy: NDArray[Any] | None = None
    """Entropy of each query shown, (H, L)."""
    received: NDArray[Any] | None = None
    """What each key shown receives from all queries, (H, S)."""
    sampled: int | None = None
    """Number of evenly spaced queries that were read; None if all were."""
    are_weights: bool = True
    """False for weights times factors, which have no upper end and may be signed."""

    @property
    def exact(self) -> bool:
        """Return True if each pixel is one weight."""
        return self.maps.shape[1:] == self.size

    @property
    def size(self) -> tuple[int, int]:
        """Return the numbers of queries and keys shown."""
        return self.queries[1] - self.queries[0], self.keys[1] - self.keys[0]


def plot_pattern(
    pattern: Pattern | WeightedPattern,
    tokens: Sequence[str] | None = None,
    *,
    scale: ScaleKind | None = None,
    rows: int | None = None,
    columns: int | None = None,
    queries: tuple[int, int] | None = None,
    keys: tuple[int, int] | None = None,
    figsize: tuple[float, float] | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draw a pattern: one head with entropy and received weight, or heads side by side.

    Signed entries have colours around 0. Entropy is drawn of weights alone, and what keys receive
    unless entries are signed.

    Args:
        pattern: ``(L, S)``, ``(H, L, S)`` or ``(1, H, L, S)``, of any length.
        tokens: one token per position, for self-attention; None numbers the positions.
        scale: ``log`` spans four powers of ten, ``linear`` starts at 0; None is linear for up to
            64 keys, else log. Both end at 1 if each pixel is one weight and some weight is at least
            0.1, else at a round number above the largest value.
        rows: maximum pixels down; None is 384, or 128 for several heads.
        columns: maximum pixels across; likewise.
        queries: start and stop of the queries to show; None is all.
        keys: likewise.
        figsize: width and height of the figure in inches; None fits the content.
        ax: existing axes to draw one head into; labels, margins and the colour bar are placed
            around them.

    Returns:
        A matplotlib figure, made without pyplot; save it with ``figure.savefig("name.pdf")``.

    Raises:
        ValueError: for several sequences, a window out of range, tokens that do not fit, a figure
            too small for its labels, or nothing to draw.
    """
    check_tokens(tokens, *pattern.shape[-2:])
    maps = read_maps(pattern, rows=rows, columns=columns, queries=queries, keys=keys)
    if ax is not None and len(maps.names) > 1:
        raise ValueError(
            f"ax has room for one head, but this is {pattern!r}; take one: "
            "pattern[0, 3].plot(ax=ax)"
        )
    return draw_maps(maps, tokens, scale, figsize, ax)


def draw_maps(
    maps: HeadMaps,
    tokens: Sequence[str] | None = None,
    scale: ScaleKind | None = None,
    figsize: tuple[float, float] | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draw data that `read_maps` read."""
    scale = scale or usual(maps.size[1])
    with on_paper():
        if len(maps.names) > 1:
            return _draw_heads(maps, tokens, scale, figsize)
        return _draw_head(maps, tokens, scale, figsize, ax)


def read_maps(
    pattern: Pattern | WeightedPattern,
    *,
    rows: int | None = None,
    columns: int | None = None,
    queries: tuple[int, int] | None = None,
    keys: tuple[int, int] | None = None,
) -> HeadMaps:
    """Read the data of a figure from a pattern."""
    *leading, length, width = pattern.shape
    if any(n != 1 for n in leading[:-1]):
        raise ValueError(
            f"a figure shows the heads of one sequence, but this is {pattern!r}; take one: "
            "pattern[0].plot()"
        )
    if not pattern.shape.numel():
        raise ValueError(f"there is nothing to draw in {pattern!r}")
    heads = leading[-1] if leading else 1
    most = PIXELS if heads == 1 else SMALL_PIXELS
    shown = span("queries", queries, length), span("keys", keys, width)
    size = rows or most, columns or most
    if isinstance(pattern, WeightedPattern):
        image, received = pattern.image(*size, queries=queries, keys=keys), pattern.received()
        is_signed = bool((image < 0).any() or (received < 0).any())
        return HeadMaps(
            maps=_array(image, heads, 2),
            names=[f"head {h}" for h in range(heads)],
            queries=(shown[0].start, shown[0].stop),
            keys=(shown[1].start, shown[1].stop),
            received=None if is_signed else _array(received[..., shown[1]], heads, 1),
            are_weights=False,
        )
    if queries is keys is None:
        image, entropy, received = pattern.read(Image(*size), Entropy(), Received())
    else:
        entropy, received = pattern.read(Entropy(), Received())
        image = pattern.image(*size, queries=queries, keys=keys)
        entropy, received = entropy[..., shown[0]], received[..., shown[1]]
    maps, entropies, receiveds = (
        _array(tensor, heads, axes) for tensor, axes in ((image, 2), (entropy, 1), (received, 1))
    )
    return HeadMaps(
        maps=maps,
        names=[f"head {h}" for h in range(heads)],
        queries=(shown[0].start, shown[0].stop),
        keys=(shown[1].start, shown[1].stop),
        entropy=entropies,
        received=receiveds,
    )


def _array(tensor: Tensor, heads: int, axes: int) -> NDArray[Any]:
    return tensor.reshape(heads, *tensor.shape[tensor.ndim - axes :]).cpu().numpy()


# One head


def _draw_head(
    maps: HeadMaps,
    tokens: Sequence[str] | None,
    scale: ScaleKind,
    figsize: tuple[float, float] | None,
    ax: Axes | None,
) -> Figure:
    width, height = _sides(maps, _SIDE, _CELL)
    if ax is not None:
        box = ax.get_window_extent()
        dpi = ax.get_figure(root=True).dpi  # type: ignore[union-attr]  # it has one
        width, height = box.width / dpi, box.height / dpi
    rows, columns = _labels(maps, tokens, width, height)
    left, top = max(rows.length, 0.55) + 0.15, max(columns[1], 0.42) + 0.3
    right, bottom = GAP + MARGIN + 0.25 + _BAR + 0.55, GAP + MARGIN + 0.4
    if ax is None:
        if figsize is not None:
            room = figsize[0] - left - right, figsize[1] - top - bottom
            if min(room) < 0.5:
                raise ValueError(
                    f"figsize={figsize} leaves no room for a map beside its labels, which take "
                    f"{left + right:.1f} × {top + bottom:.1f} inches; give more"
                )
            width, height = _within(room, width / height)
            rows, columns = _labels(maps, tokens, width, height)
        total = left + width + right, top + height + bottom
        ax = Plot.sized(*(figsize or total)).place(left, top, width, height)
    drawn = ax.get_figure(root=True)
    assert drawn is not None, "axes are in a figure"
    norm = _norm(maps, scale)
    _draw_map(ax, maps, 0, norm, width)
    rows.put(ax.yaxis)
    ax.xaxis.tick_top()
    columns[0].put(ax.xaxis, rotation=columns[2])
    caption(ax, "query ↓", (0, 1), (-5, 6), ha="right", va="bottom")
    caption(ax, "key →", (0, 1), (0, columns[1] * 72 + 4), ha="left", va="bottom")
    if maps.exact and min(width / maps.size[1], height / maps.size[0]) >= _WRITTEN:
        _write_weights(ax, maps, norm, width / maps.size[1])
    if maps.entropy is not None:
        draw_entropy(ax, maps, maps.entropy[0], width)
    if maps.received is not None:
        draw_received(ax, maps, maps.received[0], height)
    beside = (GAP + MARGIN + 0.25) / width
    _draw_scale(ax.inset_axes((1 + beside, 0, _BAR / width, 1)), norm, height, maps)
    note = _note(maps, rows.step if tokens else 1, columns[0].step if tokens else 1)
    caption(ax, note, (0, 0), (0, -(bottom - 0.06) * 72), ha="left", va="bottom", size=7)
    return drawn


def _labels(
    maps: HeadMaps, tokens: Sequence[str] | None, width: float, height: float, size: float = 8
) -> tuple[Ticks, tuple[Ticks, float, float]]:
    """Return the labels of queries, and those of keys with their height and rotation."""
    rows = ticks(tokens, maps.queries, height, size=size, across=1.25 if tokens else 2)
    if tokens is None:
        digits = len(str(maps.keys[1])) * 0.75 + 0.75
        columns = ticks(None, maps.keys, width, size=size, across=digits)
        return rows, (columns, 1.4 * size / 72, 0)
    columns = ticks(tokens, maps.keys, width, size=size)
    if columns.step == 1 and columns.length < 0.85 * width / maps.size[1]:
        return rows, (columns, 1.4 * size / 72, 0)  # labels fit without rotation
    return rows, (columns, columns.length + 0.08, 90)


def _sides(maps: HeadMaps, most: float, cell: float) -> tuple[float, float]:
    """Return width and height of a map, with square cells unless it would be too thin."""
    longest = max(maps.size)
    side = min(most, max(cell * longest, 0.3 * most))
    least = 0.25 * most if longest > 8 * min(maps.size) else 0.0
    height, width = (max(side * part / longest, least) for part in maps.size)
    rows, columns = maps.maps.shape[1:]
    return crisp(width, columns), crisp(height, rows)


def _within(room: tuple[float, float], shape: float) -> tuple[float, float]:
    """Return the largest width and height of an aspect ratio that fit."""
    width = min(room[0], room[1] * shape)
    return width, width / shape


def _norm(maps: HeadMaps, scale: ScaleKind) -> WeightNorm:
    finite = maps.maps[np.isfinite(maps.maps)]
    most = float(np.abs(finite).max()) if finite.size else 0.0
    signed = bool((finite < 0).any())
    chosen = scale_for(scale, most, exact=maps.exact, are_weights=maps.are_weights, signed=signed)
    return WeightNorm(chosen)


def _draw_map(ax: Axes, maps: HeadMaps, head: int, norm: WeightNorm, side: float) -> None:
    (top, bottom), (left, right) = maps.queries, maps.keys
    ax.imshow(
        maps.maps[head],
        cmap=colours_of(norm.scale),
        norm=norm,
        extent=(left - 0.5, right - 0.5, bottom - 0.5, top - 0.5),
        interpolation=interpolation(side, maps.maps.shape[2]),
        interpolation_stage="data",
        aspect="auto",
    )
    ax.spines[:].set(visible=True, color=LINE, linewidth=0.8)


def _write_weights(ax: Axes, maps: HeadMaps, norm: WeightNorm, cell: float) -> None:
    """Write each weight into its cell, except exact zeros, as of hidden keys."""
    weights = maps.maps[0]
    luminance = colours_of(norm.scale)(norm(weights))[..., :3] @ (0.2126, 0.7152, 0.0722)
    for i, j in zip(*np.nonzero(weights), strict=True):
        value = float(weights[i, j])
        if not maps.are_weights and abs(value) < 0.005:
            continue
        ax.text(
            ax.get_xlim()[0] + 0.5 + j,
            ax.get_ylim()[1] + 0.5 + i,
            "<.01" if maps.are_weights and value < 0.005 else f"{value:z.2f}",
            ha="center",
            va="center",
            fontsize=min(8, 17 * cell),
            color="white" if luminance[i, j] < 0.5 else INK,
            parse_math=False,
        )


# Several heads


def _draw_heads(
    maps: HeadMaps,
    tokens: Sequence[str] | None,
    scale: ScaleKind,
    figsize: tuple[float, float] | None,
) -> Figure:
    """Draw heads side by side, on one scale."""
    heads = len(maps.names)
    across = heads if heads <= 4 else min(8, math.ceil(math.sqrt(1.5 * heads)))
    down = math.ceil(heads / across)
    width, height = _sides(maps, _SMALL_SIDE, 0.26)
    rows, columns = _labels(maps, tokens, width, height, 7)
    left, right = max(rows.length, 0.45) + 0.15, 0.25 + _BAR + 0.6
    top, bottom = columns[1] + 0.2, 0.3
    gap, title = 0.22, 0.24
    if figsize is not None:
        room = figsize[0] - left - right - across * gap, figsize[1] - top - bottom - down * title
        if min(room[0] / across, room[1] / down) < 0.2:
            raise ValueError(f"figsize={figsize} leaves no room for {heads} heads; give more")
        width, height = _within((room[0] / across, room[1] / down), width / height)
        rows, columns = _labels(maps, tokens, width, height, 7)
    total = left + across * (width + gap) + right, top + down * (height + title) + bottom
    figure = Plot.sized(*(figsize or total))
    norm = _norm(maps, scale)
    for head, name in enumerate(maps.names):
        row, column = divmod(head, across)
        x, y = left + column * (width + gap), top + row * (height + title) + title
        ax = figure.place(x, y, width, height)
        _draw_map(ax, maps, head, norm, width)
        ax.set(xticks=[], yticks=[])
        if row == 0:
            ax.xaxis.tick_top()
            columns[0].put(ax.xaxis, rotation=columns[2], pad=title * 72 - 2)
        if column == 0:
            rows.put(ax.yaxis)
        caption(ax, name, (0, 1), (0, 3), ha="left", va="bottom", size=8, color=INK)
    first = figure.axes[0]
    caption(first, "query ↓", (0, 1), (-5, 3), ha="right", va="bottom", size=7)
    beside = left + across * (width + gap) - gap + 0.25
    bar = figure.place(beside, top + title, _BAR, max(height, 0.9))
    _draw_scale(bar, norm, max(height, 0.9), maps)
    note = _note(maps, rows.step if tokens else 1, columns[0].step if tokens else 1)
    inches = figure.get_size_inches()
    figure.text(left / inches[0], 0.08 / inches[1], note, size=7, color=FAINT, va="bottom")
    return figure


# Shared by both


def _draw_scale(ax: Axes, norm: WeightNorm, height: float, maps: HeadMaps) -> None:
    """Draw the colour bar with its ends labelled."""
    scale = norm.scale
    place = (np.arange(256)[:, None] + 0.5) / 256
    ax.imshow(
        place,
        cmap=colours_of(scale),
        vmin=0,
        vmax=1,
        aspect="auto",
        origin="lower",
        extent=(0, 1, 0, 1),
    )
    values = scale.ticks()
    if height < 0.8:
        values = [values[0], values[-1]]
    labels = [number(value) for value in values]
    if scale.kind == "log" and not scale.signed:
        labels[0] = f"≤ {labels[0]}"
    ax.set_xticks([])
    ax.set_yticks([float(scale.place(np.array(v))) for v in values], labels)
    ax.yaxis.tick_right()
    ax.tick_params(length=2, pad=2, labelsize=7)
    ax.spines[:].set(visible=True, color=LINE)
    ax.set_label("scale")
    what = "weight" if maps.are_weights else "entry"
    text = f"{what},\n{scale.kind}" if height < 1.2 else f"{what}, {scale.kind}"
    caption(ax, text, (0, 1), (0, 6), ha="left", va="bottom", size=7)


def _note(maps: HeadMaps, *steps: int) -> str:
    """Return a note on the figure: the weights per pixel, and which tokens are labelled."""
    (queries, keys), (rows, columns) = maps.size, maps.maps.shape[1:]
    parts = [f"{queries} queries × {keys} keys"]
    if maps.sampled is not None:
        parts.append(f"drawn from {maps.sampled} of the queries, spread evenly")
    if not maps.exact:
        down, across = (maps.sampled or queries) / rows, keys / columns
        parts.append(f"a pixel is the mean over {down:.3g} × {across:.3g}")
    parts += [skipped(step) for step in dict.fromkeys(steps) if step > 1]
    return "; ".join(parts)
