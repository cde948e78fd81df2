"""What `regard effects` prints: the heads and the tokens that a prediction rests on.

Axes: H heads, T tokens.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from torch import Tensor

    from regard._shapes import Float

__all__ = ["effects_report"]

_ROWS = 8  # of a table; the rest is counted
_BAR, _SHORT = 14, 5  # terminal cells of the longest bar, on a wide terminal and on a narrow one
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


@dataclass(frozen=True)
class _Table:
    """The largest effects, a row each; on a narrow terminal with a short bar and fewer columns."""

    effects: Effects
    first: str
    """The name of the first column."""
    columns: tuple[str, ...]
    """Those of the last ones."""
    rows: Sequence[tuple[str, Effect, tuple[str, ...]]]
    """The cell of the first column, the effect, and the cells of the last columns."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        count = len(self.columns)
        boundless = options.update(max_width=sys.maxsize)
        narrow = [(_SHORT, shown) for shown in range(count, -1, -1)]
        for bar_cells, shown in [(_BAR, count), *narrow, (0, 0)]:
            table = self._table(bar_cells, shown)
            if console.measure(table, options=boundless).maximum <= options.max_width:
                break
        yield table
        if left := count - shown:
            yield Text(f"… {left} more column{'s' if left > 1 else ''} in a wider terminal", "dim")

    def _table(self, bar_cells: int, shown: int) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column(self.first, no_wrap=True)
        table.add_column("Δ log p", justify="right", no_wrap=True)
        table.add_column("", min_width=bar_cells, no_wrap=True)
        table.add_column("p", justify="right", no_wrap=True)
        for name in self.columns[:shown]:
            table.add_column(name, no_wrap=True)
        most = max((abs(effect.value) for _, effect, _ in self.rows), default=0.0)
        for name, effect, cells in self.rows:
            share = abs(effect.value) / most if most else 0.0
            table.add_row(
                Text(name),
                f"{effect.value:+.2f}".replace("-", "−"),
                bar(share, bar_cells, ACCENT if effect.value < 0 else _GAIN),
                _probability(self.effects.unchanged + effect.value),
                *map(Text, cells[:shown]),
            )
        return table


def _heads(effects: Effects, result: ForwardPass, weights: Float[Tensor, "N H T"]) -> _Table:
    rows = []
    largest = effects.largest(_ROWS)
    names = ["{}.{}".format(*effect.place) for effect in largest]
    width = max(map(len, ["head", *names]))
    for name, effect in zip(names, largest, strict=True):
        layer, head = effect.place
        weight, key = weights[layer, head].max(dim=-1)
        looks = f"{float(weight):.2f} {label(int(key), result.tokens[int(key)], _LABEL)}"
        rows.append((name.rjust(width), effect, (looks,)))
    return _Table(effects, "head", ("looks most at",), rows)


def _keys(effects: Effects, weights: Float[Tensor, "N H T"]) -> _Table:
    rows = []
    for effect in effects.largest(_ROWS):
        row = weights[..., slice(*effect.place)].sum(dim=-1)  # (N, H): of a block, all together
        layer, head = divmod(int(row.argmax()), row.shape[1])
        cells = f"{float(row.max()):.2f} in {layer}.{head}", f"{float(row.mean()):.2f}"
        rows.append((_name(effect.name), effect, cells))
    return _Table(effects, "token", ("largest weight", "mean"), rows)


def _compared(effects: Effects, weights: Float[Tensor, "N H T"]) -> Text:
    """Whether the prediction needs most what its heads look at most."""
    places = [place for place in effects.places if place[1] < weights.shape[-1]]
    if not places:
        return Text("\nA single token has no later one to be hidden from.")
    means = [float(weights[..., slice(*place)].sum(dim=-1).mean()) for place in places]
    looked = places[means.index(max(means))]
    needed = min(range(len(effects.places)), key=lambda number: float(effects.values[number]))
    names = dict(zip(effects.places, map(str, effects.labels[0]), strict=True))
    kept = "The last token's own row keeps it, so that its Δ is 0. Of the others"
    most = f"{kept}, {_name(names[looked])} is looked at most"
    if effects.places[needed] == looked:
        return Text(f"\n{most}, and needed most.")
    return Text(f"\n{most}, {_name(names[effects.places[needed]])} needed most.")


def _probability(logarithm: float) -> str:
    probability = math.exp(logarithm)
    return f"{probability:.2f}" if probability >= 0.005 else f"{probability:.0e}"


def _name(name: str) -> str:
    """A block of keys: its numbers, and its tokens as far as they fit."""
    where, _, tokens = name.partition(" ")
    return label(where, tokens, _LABEL)


def _heading(text: str) -> Text:
    return Text(f"\n{text}", "bold")
