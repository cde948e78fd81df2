"""What `regard effects` prints: the heads and the tokens that a prediction rests on.

Axes: H heads, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from rich.table import Table
from rich.text import Text

from regard.intervene import Effect, Effects
from regard.record.forward_pass import ForwardPass
from regard.view.summary import ACCENT, TokenStrip, bar, next_tokens
from regard.view.terminal import label
from regard.view.tokens import visible

if TYPE_CHECKING:
    from rich.console import RenderableType
    from torch import Tensor

    from regard._shapes import Float

__all__ = ["effects_report"]

_ROWS = 8  # of a table; the rest is counted
_BAR = 14  # terminal cells of the longest bar
_LABEL = 16  # terminal cells of a token
_GAIN = "#4a86c5"  # of a bar that says that the prediction gains

_ABOUT = (
    "A weight says where a head looks, Δ what the prediction loses (or, above 0, gains) without "
    "it; the one does not follow from the other. Each Δ is of one change alone: of two heads or "
    "tokens that say the same, neither may be missed."
)


def effects_report(
    result: ForwardPass, target: str, measured: Sequence[Effects]
) -> Iterator[RenderableType]:
    """Lay out the effects on the last token's prediction.

    Args:
        result: the text as the model's heads see it.
        target: the token whose log-probability the effects are of.
        measured: effects over heads, over keys, or both.
    """
    last = len(result.tokens) - 1
    yield _heading(f"{len(result.tokens)} token{'s' if last else ''}, token {last} marked")
    yield TokenStrip(result.tokens, last)
    yield next_tokens(result, last)
    probability = _probability(measured[0].unchanged)
    weights = torch.stack([pattern[:, -1] for pattern in result.patterns]).double().cpu()
    for effects in measured:
        what = "heads" if effects.over == "heads" else "tokens"
        yield _heading(f"The {what} that {visible(target)} ({probability}) rests on")
        yield _heads(effects, result, weights) if what == "heads" else _keys(effects, weights)
        left = effects.values.numel() - _ROWS
        if left > 0:
            largest = effects.largest(_ROWS + 1)[-1].value
            yield Text(f"… {left} more, each at most {abs(largest):.2f}", "dim")
        if what == "tokens":
            yield _compared(effects, weights)
    yield Text(f"\n{_ABOUT}", "dim")


def _heads(effects: Effects, result: ForwardPass, weights: Float[Tensor, "N H T"]) -> Table:
    table = _table("head", "looks most at")
    for effect in effects.largest(_ROWS):
        layer, head = effect.place
        weight, key = weights[layer, head].max(dim=-1)
        looks = f"{float(weight):.2f} {label(int(key), result.tokens[int(key)], _LABEL)}"
        name = Text(f"{layer}.{head}".rjust(len("head")))
        table.add_row(name, *_cells(effect, effects), Text(looks))
    return table


def _keys(effects: Effects, weights: Float[Tensor, "N H T"]) -> Table:
    table = _table("token", "largest weight", "mean")
    for effect in effects.largest(_ROWS):
        row = weights[..., slice(*effect.place)].sum(dim=-1)  # (N, H): of a block, all together
        layer, head = divmod(int(row.argmax()), row.shape[1])
        largest = f"{float(row.max()):.2f} in {layer}.{head}"
        name = Text(_name(effect.name))
        table.add_row(name, *_cells(effect, effects), largest, f"{float(row.mean()):.2f}")
    return table


def _table(first: str, *last: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(first, no_wrap=True)
    table.add_column("Δ log p", justify="right", no_wrap=True)
    table.add_column("", min_width=_BAR, no_wrap=True)
    table.add_column("p", justify="right", no_wrap=True)
    for name in last:
        table.add_column(name, no_wrap=True)
    return table


def _cells(effect: Effect, effects: Effects) -> tuple[Text, Text, Text]:
    """The effect, a bar beside the largest one's, and what the probability becomes."""
    most = abs(effects.largest(1)[0].value)
    share = abs(effect.value) / most if most else 0.0
    style = ACCENT if effect.value < 0 else _GAIN
    return (
        Text(f"{effect.value:+.2f}".replace("-", "−")),
        bar(share, _BAR, style),
        Text(_probability(effects.unchanged + effect.value)),
    )


def _compared(effects: Effects, weights: Float[Tensor, "N H T"]) -> Text:
    """Whether the prediction needs most what its heads look at most."""
    places = [place for place in effects.places if place[1] < weights.shape[-1]]
    if not places:
        return Text("\nA single token has no later one to be hidden from.")
    means = [float(weights[..., slice(*place)].sum(dim=-1).mean()) for place in places]
    looked = places[means.index(max(means))]
    needed = min(range(len(effects.places)), key=lambda number: float(effects.values[number]))
    names = dict(zip(effects.places, map(str, effects.labels[0]), strict=True))
    most = f"Looked at most, the last token itself aside: {_name(names[looked])}"
    if effects.places[needed] == looked:
        return Text(f"\n{most}; it is needed most, too.")
    return Text(f"\n{most}; needed most: {_name(names[effects.places[needed]])}.")


def _probability(logarithm: float) -> str:
    probability = math.exp(logarithm)
    return f"{probability:.2f}" if probability >= 0.005 else f"{probability:.0e}"


def _name(name: str) -> str:
    """A block of keys: its numbers, and its tokens as far as they fit."""
    where, _, tokens = name.partition(" ")
    return label(where, tokens, _LABEL)


def _heading(text: str) -> Text:
    return Text(f"\n{text}", "bold")
