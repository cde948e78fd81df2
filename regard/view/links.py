"""What is shown of links: for each kind the heads that look most, and the heads that are needed.

Axes: K kinds, N layers, H heads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.lens.spans.link_weights import ENOUGH, LinkWeights
from regard.view.elements import heading, line, table, whole

if TYPE_CHECKING:
    from regard.gpt import LinkEffects

__all__ = ["link_effects_html", "link_effects_text", "link_weights_html", "link_weights_text"]

_FEW = "too few links"  # in place of the numbers of a kind
_WIDTH = 100  # most characters of a line of prose
_WEIGHTS = ("kind", "links", "head", "deciding", "decoys", "control")
_EFFECTS = (
    *("kind", "links", "right", "looks most", "weight", "decoys", "control", "Δ"),
    *("needed most", "Δ", "weight", "layer", "Δ", "all heads Δ"),
)
_ABOUT_WEIGHTS = (
    "Of each kind the head with most weight on the deciding word, ± half of the 95 % interval; "
    "frame() has all heads."
)
_ABOUT_EFFECTS = (
    "Left the head that looks most at the deciding word, right the head and the layer that are "
    "needed most. Δ: change of the decided word's log-probability, in nats, where the query that "
    "predicts it may not look at the deciding word in that head, layer, or any head. frame() has "
    "all heads."
)


def link_weights_text(weights: LinkWeights) -> str:
    """A line a kind."""
    return _text(_WEIGHTS, _weights_rows(weights), _ABOUT_WEIGHTS)


def link_weights_html(weights: LinkWeights) -> str:
    """A row a kind."""

    def parts() -> Iterable[str]:
        yield heading("Links", _links(weights))
        yield table(_WEIGHTS, _weights_rows(weights))
        yield line(_ABOUT_WEIGHTS)

    return whole(parts, weights)


def link_effects_text(effects: LinkEffects) -> str:
    """A line a kind."""
    return _text(_EFFECTS, _effects_rows(effects), _ABOUT_EFFECTS)


def link_effects_html(effects: LinkEffects) -> str:
    """A row a kind."""

    def parts() -> Iterable[str]:
        yield heading("Looked at and needed", _links(effects.weights))
        yield table(_EFFECTS, _effects_rows(effects))
        yield line(_ABOUT_EFFECTS)

    return whole(parts, effects)


def _weights_rows(weights: LinkWeights) -> Iterator[tuple[str, ...]]:
    for number, (kind, count) in enumerate(weights.counts.items()):
        cells = _looking(weights, number)[1] if count >= ENOUGH else (_FEW, "", "", "")
        yield kind, str(count), *cells


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
            f"{weights.deciding.mean[number][needed]:.2f}",
            str(weights.layers[layer]),
            _signed(change.layers.mean[number, layer]),
            _signed(change.model.mean[number]),
        )


def _looking(weights: LinkWeights, kind: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The place of the head that looks most at the deciding words of a kind, and its cells."""
    mean = weights.deciding.mean[kind]
    place = _least(-mean)
    return place, (
        _head(weights, place),
        f"{mean[place]:.2f} ± {weights.deciding.interval[kind][place]:.2f}",
        _share(weights.decoys.mean[kind][place]),
        _share(weights.controls.mean[kind][place]),
    )


def _least(values: Tensor) -> tuple[int, ...]:
    """The place of the least number, NaN left out."""
    flat = values.nan_to_num(nan=float("inf")).argmin()
    return tuple(int(index) for index in torch.unravel_index(flat, values.shape))


def _head(weights: LinkWeights, place: Sequence[int]) -> str:
    return f"{weights.layers[place[0]]}.{weights.heads[place[1]]}"


def _with_interval(mean: Tensor, interval: Tensor, place: tuple[int, ...]) -> str:
    return f"{_signed(mean[place])} ± {interval[place]:.2f}"


def _share(value: Tensor) -> str:
    return "–" if value.isnan() else f"{value:.2f}"


def _signed(value: Tensor) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _links(weights: LinkWeights) -> str:
    texts = len(set(weights.deciding.groups.texts))
    return f"{sum(weights.counts.values())} links in {texts} text{'s' if texts != 1 else ''}"


def _text(names: Sequence[str], rows: Iterable[Sequence[str]], about: str) -> str:
    """A table whose columns are as wide as they need to be, and a remark."""
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
