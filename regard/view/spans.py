"""Weights and effects of spans as text and HTML: a row per kind.

Axes: K kinds, N layers, H heads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from textwrap import shorten, wrap
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.lens.spans.weights import ENOUGH, SpanWeights
from regard.view.elements import heading, line, table, whole
from regard.view.tokens import readable

if TYPE_CHECKING:
    from regard.gpt import LinkEffects

__all__ = ["link_effects_html", "link_effects_text", "span_weights_html", "span_weights_text"]

_FEW = "too few spans"  # instead of the numbers of a kind
_WIDTH = 100  # maximum characters of a line of prose
_NAME = 70  # maximum characters of the name of a kind
_WEIGHTS = ("kind", "spans", "mean", "looks most", "weight", "decoys", "control")
_EFFECTS = (
    *("kind", "links", "right", "looks most", "weight", "decoys", "control", "Δ"),
    *("needed most", "Δ", "weight", "layer", "Δ", "all heads Δ"),
)
_ABOUT_MEAN = "Mean: weight on a span, over all heads of layers {layers}; frame() has each head."
_ABOUT_HEAD = (
    " Of each kind the head that looks most, with its weight ± half of the 95 % interval, and its "
    "weight on decoys and control words."
)
_ABOUT_EFFECTS = (
    "Left the head that looks most at the deciding word, right the head and the layer that are "
    "needed most. Δ: change of the decided word's log-probability, in nats, where the query that "
    "predicts it may not look at the deciding word in that head, layer, or any head. frame() has "
    "all heads."
)


def span_weights_text(weights: SpanWeights) -> str:
    """Return a line a kind."""
    return _text(*_weights_table(weights))


def span_weights_html(weights: SpanWeights) -> str:
    """Return a row a kind."""

    def parts() -> Iterable[str]:
        names, rows, about = _weights_table(weights)
        yield heading("Weights", _counted(weights, "span"))
        yield table(names, rows)
        yield line(about)

    return whole(parts, weights)


def link_effects_text(effects: LinkEffects) -> str:
    """Return a line a kind."""
    return _text(_EFFECTS, _effects_rows(effects), _ABOUT_EFFECTS)


def link_effects_html(effects: LinkEffects) -> str:
    """Return a row a kind."""

    def parts() -> Iterable[str]:
        yield heading("Looked at and needed", _counted(effects.weights, "link"))
        yield table(_EFFECTS, _effects_rows(effects))
        yield line(_ABOUT_EFFECTS)

    return whole(parts, effects)


def _weights_table(
    weights: SpanWeights,
) -> tuple[Sequence[str], list[tuple[str, ...]], str]:
    """Return column names, a row per kind, and a remark; heads are named only with enough spans."""
    rows = []
    has_heads = any(count >= ENOUGH for count in weights.counts.values())
    for number, (kind, count) in enumerate(weights.counts.items()):
        cells = _looking(weights, number)[1] if count >= ENOUGH else (_FEW, "", "", "")
        name = readable(shorten(kind, _NAME, placeholder=" …"))
        mean = f"{weights.mean[number]:.3f}"
        rows.append((name, str(count), mean, *(cells if has_heads else ())))
    layers = ", ".join(map(str, weights.layers))
    about = _ABOUT_MEAN.format(layers=layers) + (_ABOUT_HEAD if has_heads else "")
    return _WEIGHTS if has_heads else _WEIGHTS[:3], rows, about


def _effects_rows(effects: LinkEffects) -> Iterator[tuple[str, ...]]:
    weights, change = effects.weights, effects.log_probability
    for number, (kind, count) in enumerate(effects.counts.items()):
        right = f"{effects.correct.mean[number]:.2f}"
        if count < ENOUGH:
            yield kind, str(count), right, _FEW, *[""] * (len(_EFFECTS) - 4)
            continue
        looking, cells = _looking(weights, number)
        needed = _least(change.heads.mean[number])
        (layer,) = _least(change.layers.mean[number])
        yield (
            *(kind, str(count), right, *cells, _signed(change.heads.mean[number][looking])),
            _head(weights, needed),
            _with_interval(change.heads.mean[number], change.heads.interval[number], needed),
            f"{weights.spans.mean[number][needed]:.2f}",
            str(weights.layers[layer]),
            _signed(change.layers.mean[number, layer]),
            _signed(change.model.mean[number]),
        )


def _looking(weights: SpanWeights, kind: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the position of the head with the largest weight on a kind, and its cells."""
    mean = weights.spans.mean[kind]
    place = _least(-mean)
    return place, (
        _head(weights, place),
        f"{mean[place]:.2f} ± {weights.spans.interval[kind][place]:.2f}",
        _share(weights.decoys.mean[kind][place]),
        _share(weights.controls.mean[kind][place]),
    )


def _least(values: Tensor) -> tuple[int, ...]:
    """Return the index of the smallest number, ignoring NaN."""
    flat = values.nan_to_num(nan=float("inf")).argmin()
    return tuple(int(index) for index in torch.unravel_index(flat, values.shape))


def _head(weights: SpanWeights, place: Sequence[int]) -> str:
    return f"{weights.layers[place[0]]}.{weights.heads[place[1]]}"


def _with_interval(mean: Tensor, interval: Tensor, place: tuple[int, ...]) -> str:
    return f"{_signed(mean[place])} ± {interval[place]:.2f}"


def _share(value: Tensor) -> str:
    return "–" if value.isnan() else f"{value:.2f}"


def _signed(value: Tensor) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _counted(weights: SpanWeights, what: str) -> str:
    count, texts = len(weights.spans.kinds), len(set(weights.spans.texts))
    return f"{count} {what}{'s'[: count != 1]} in {texts} text{'s'[: texts != 1]}"


def _text(names: Sequence[str], rows: Iterable[Sequence[str]], about: str) -> str:
    """Format a table with columns of minimal width, and a remark."""
    lines = [tuple(names), *map(tuple, rows)]
    shorter = [line for line in lines if _FEW not in line]
    widths = [max(len(line[column]) for line in shorter) for column in range(len(names))]
    padded = (
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )
    return "\n".join([*(line.rstrip() for line in padded), *wrap(about, _WIDTH)])
