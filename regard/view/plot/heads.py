"""All heads of a recording as one figure: a thumbnail each, layers down, heads across.

Axes: H heads, r × c pixels of a thumbnail. Lengths are in inches.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.patches import Rectangle

from regard.lens.naming.head_scores import score_heads
from regard.lens.naming.heads import HeadScores, over
from regard.lens.naming.roles import Role
from regard.pattern import Pattern
from regard.record import RecordError, Recording
from regard.record.layer import Layer
from regard.view.plot.colour import FEW, WeightNorm, scale_for, shades, usual
from regard.view.plot.style import (
    ACCENT,
    FAINT,
    INK,
    LINE,
    Plot,
    canvas,
    crisp,
    interpolation,
    on_paper,
    write,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

__all__ = ["Thumbnails", "draw_thumbnails", "named", "of_first", "plot_heads"]

_WIDE = 11.0  # maximum width of the grid before thumbnails become smaller
_LARGEST, _SMALLEST = 0.95, 0.46
_PLAIN = {
    role.value for role in Role if role.is_open or role in (Role.SPREAD, Role.MIXED, Role.ALONE)
}


@dataclass(frozen=True)
class Thumbnails:
    """The thumbnails of a layer."""

    layer: int
    heads: tuple[int, ...]
    maps: NDArray[Any]
    """Mean weight of each pixel, (H, r, c)."""
    exact: bool
    keys: int
    names: tuple[str, ...] = ()
    """Role of each head; empty if heads could not be scored."""
    estimates: tuple[str, ...] = ()
    """Score with its interval, or the undecided role; empty if neither is known."""


def plot_heads(recording: Recording, size: int = 64) -> Figure:
    """Draw a recording's heads; see `Recording.plot_heads`."""
    if size < 1:
        raise ValueError(f"size must be at least 1, but is {size}")
    layers = recording.of_kind().layers
    if not layers:
        raise ValueError("no layer was recorded, so there is nothing to draw")
    scores, reason = named(recording, layers)
    drawn = [_thumbnails(layer, size, scores.get(place, ())) for place, layer in enumerate(layers)]
    with on_paper():
        return draw_thumbnails(drawn, _note(layers, reason, scored=bool(scores)))


def named(
    recording: Recording, layers: Sequence[Layer]
) -> tuple[dict[int, tuple[HeadScores, ...]], str]:
    """Return the scores of the heads by layer position, and the reason if there are none."""
    if layers[0].kind == "cross":
        return {}, "cross-attention is not scored"
    try:
        other = layers[0].kind == "encoder" and "self" in recording.kinds
        tokens = recording.source_tokens if other else recording.tokens
        heads = score_heads(layers, tokens, progress=False)
    except RecordError as error:
        return {}, f"not scored: {error}"
    scores = iter(heads)
    by_place = {
        place: tuple(next(scores) for _ in layer.heads) for place, layer in enumerate(layers)
    }
    if heads.repeats is None:
        return by_place, "induction not scored: the tokens were not recorded"
    return by_place, f"induction {over(heads.repeats[0])}"


def of_first(pattern: Pattern) -> Pattern:
    """Return the heads of the first sequence, (H, L, S)."""
    while pattern.ndim > 3:
        pattern = pattern[0]
    return pattern


def _thumbnails(layer: Layer, size: int, scores: tuple[HeadScores, ...]) -> Thumbnails:
    pattern = of_first(layer.pattern)
    image = pattern.image(size, size)
    maps = image.reshape(-1, *image.shape[-2:]).cpu().numpy()
    exact = image.shape[-2:] == pattern.shape[-2:]
    return Thumbnails(
        layer=layer.index,
        heads=layer.heads,
        maps=maps,
        exact=exact,
        keys=pattern.shape[-1],
        names=tuple(str(head.role) for head in scores),
        estimates=tuple(map(_estimate, scores)),
    )


def _estimate(head: HeadScores) -> str:
    undecided = head.role.is_open and head.undecided is not None
    return f"{head.undecided}?" if undecided else head.estimate


def _note(layers: Sequence[Layer], reason: str, *, scored: bool) -> str:
    shapes = list(dict.fromkeys(tuple(layer.pattern.shape[-2:]) for layer in layers))
    sizes = ", ".join(f"{rows} queries × {keys} keys" for rows, keys in shapes[:3])
    parts = [sizes + (" …" if len(shapes) > 3 else "")]
    batch = max(layer.pattern.shape[0] if layer.pattern.ndim > 3 else 1 for layer in layers)
    if batch > 1:
        parts.append(f"pictures of sequence 0 of {batch}, names over all")
    parts.append(f"each head on a {_scales(keys for _, keys in shapes)} scale of its own")
    if scored:
        parts.append("under a name its score ± the interval of 95 %")
    return "; ".join([*parts, reason] if reason else parts)


def _scales(keys: Iterable[int]) -> str:
    names = {"linear": "linear", "log": "logarithmic"}
    kinds = {names[usual(number)] for number in keys}
    return kinds.pop() if len(kinds) == 1 else f"linear (up to {FEW} keys) or logarithmic"


def draw_thumbnails(layers: Sequence[Thumbnails], note: str) -> Figure:
    """Draw thumbnails in a grid."""
    columns = sorted({head for layer in layers for head in layer.heads})
    pixels = max(max(layer.maps.shape[1:], default=1) for layer in layers)
    side = crisp(min(_LARGEST, max(_SMALLEST, _WIDE / len(columns))), max(pixels, 1))
    small = side < 0.8
    named_ = any(layer.names for layer in layers)
    gap, under = 0.1, (0.1 if not named_ else 0.3 if small else 0.36)
    left, top = 0.64, 0.44
    width = max(left + len(columns) * (side + gap) + 0.1, 3.2)
    lines = _wrapped(note, width - left)
    bottom = 0.16 + 0.13 * len(lines)
    height = top + len(layers) * (side + under) + bottom
    figure, axes = canvas(width, height, Plot)
    write(axes, left - 0.1, 0.15, "layer ↓", "right", color=FAINT, fontsize=8)
    write(axes, left, 0.15, "head →", "left", color=FAINT, fontsize=8)
    for column, head in enumerate(columns):
        x = left + column * (side + gap) + side / 2
        write(axes, x, top - 0.09, str(head), color=INK, fontsize=8)
    for row, layer in enumerate(layers):
        y = top + row * (side + under)
        write(axes, left - 0.1, y + side / 2, str(layer.layer), "right", color=INK, fontsize=8)
        for place, head in enumerate(layer.heads):
            x = left + columns.index(head) * (side + gap)
            _draw_thumbnail(axes, layer, place, (x, y), side)
            if layer.names:
                _write_name(axes, layer.names[place], (x, y + side), small=small)
            if layer.estimates and not small:
                estimate = layer.estimates[place]
                at = (x, y + side + 0.17)
                write(axes, *at, estimate, "left", va="top", color=FAINT, fontsize=6)
    axes.set(xlim=(0, width), ylim=(height, 0))
    for number, line in enumerate(lines):
        y = height - bottom + 0.14 + 0.13 * number
        write(axes, left, y, line, "left", color=FAINT, fontsize=7, parse_math=False)
    return figure


def _draw_thumbnail(
    axes: Axes, layer: Thumbnails, place: int, at: tuple[float, float], side: float
) -> None:
    (x, y), values = at, layer.maps[place]
    finite = values[np.isfinite(values)]
    most = float(finite.max()) if finite.size else 0.0
    if values.size:
        axes.imshow(
            values,
            cmap=shades(),
            norm=WeightNorm(scale_for(usual(layer.keys), most, exact=layer.exact)),
            extent=(x, x + side, y + side, y),
            interpolation=interpolation(side, max(values.shape)),
            interpolation_stage="data",
            aspect="auto",
        )
    axes.add_patch(Rectangle((x, y), side, side, facecolor="none", edgecolor=LINE, linewidth=0.6))


def _write_name(axes: Axes, name: str, at: tuple[float, float], *, small: bool) -> None:
    color = FAINT if name in _PLAIN else ACCENT
    text = name.replace(" ", "\n", 1) if small else name
    size = 5 if small else 7
    write(
        axes, at[0], at[1] + 0.04, text, "left", va="top", color=color, fontsize=size, linespacing=1
    )


def _wrapped(text: str, width: float) -> list[str]:
    return textwrap.wrap(text, max(24, int(width / 0.052)))
