"""What `regard passages` prints: passages with bars, looked at beside needed, and quotations."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from regard.lens import Passage, PassageEffects
from regard.view.passages import (
    about_weights,
    quoted,
    remainders,
    signed,
    summary_of,
    token_range,
)
from regard.view.summary import ACCENT, bar

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

__all__ = ["passages_report"]

_ROWS = 12  # of the table; the rest is counted
_BAR = 8  # terminal cells of the longest bar
_LEAST = 20  # terminal cells of a passage, where there is room for them
_TEXT = 200  # characters of a passage that a cell is cut from
_QUOTE = 700  # characters of a quotation
_GAIN = "#4a86c5"  # of a bar that says that the answer gains


def passages_report(effects: PassageEffects, answer: str) -> Iterator[RenderableType]:
    """Lay out what an answer looked at and needed.

    Args:
        effects: of the passages of a document.
        answer: the answer's text.
    """
    weights = effects.weights
    yield Text.assemble(("Answer", "bold"), f" {quoted(answer, _QUOTE)}")
    count = len(weights.passages)
    yield Text(f"\n{count} passage{'s'[: count > 1]}, by what the answer needs", "bold")
    yield _Table(effects)
    left = count - _ROWS
    if left > 0:
        yield Text(f"… {left} more passage{'s'[: left > 1]}; --json has all", "dim")
    looked, needed = weights.order()[0], effects.order()[0]
    same = looked == needed
    yield from _quotation("Looked at and needed most" if same else "Needed most", effects, needed)
    if not same:
        yield from _quotation("Looked at most", effects, looked)
    yield Text(f"\n{summary_of(effects)}", "dim")
    yield Text(about_weights(weights), "dim")
    yield Text("Looked at and needed are two things; each Δ is of one passage alone.", "dim")


@dataclass(frozen=True)
class _Table:
    """A row a passage, in what a terminal has of width; on a narrow one without bars."""

    effects: PassageEffects

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        boundless = options.update(max_width=sys.maxsize)
        for bar_cells, least in ((_BAR, _LEAST), (0, _LEAST), (0, 0)):
            numbers = console.measure(self._table(bar_cells, 1), options=boundless).maximum
            if numbers - 1 + least <= options.max_width:
                break
        yield self._table(bar_cells, max(options.max_width - numbers + 1, 1))

    def _table(self, bar_cells: int, text_cells: int) -> Table:
        effects, weights = self.effects, self.effects.weights
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        names = (
            "weight",
            *([""] * bool(bar_cells)),
            "Δ log p",
            *([""] * bool(bar_cells)),
            "tokens",
        )
        for name in names:
            table.add_column(name, justify="right" if name else "left", no_wrap=True)
        table.add_column("passage"[:text_cells], no_wrap=True)
        means, changes = weights.mean.tolist(), effects.values.tolist()
        most, largest = max(means) or 1.0, max(map(abs, changes)) or 1.0

        def row(weight: float, change: float | None, tokens: str, text: Text) -> None:
            bars = [
                Text() if change is None else bar(weight / most, bar_cells),
                bar(abs(change or 0) / largest, bar_cells, ACCENT if (change or 0) < 0 else _GAIN),
            ]
            figures = [f"{weight:.3f}", "" if change is None else signed(change)]
            both = zip(figures, bars, strict=True)
            cells = [cell for pair in both for cell in pair[: 1 + bool(bar_cells)]]
            text.truncate(max(text_cells, 1), overflow="ellipsis")
            table.add_row(*cells, tokens, text)

        for number in effects.order()[:_ROWS]:
            passage = weights.passages[number]
            text = Text(quoted(passage.text, _TEXT))
            row(means[number], changes[number], token_range(passage.tokens), text)
        for name, weight in remainders(weights):
            row(weight, None, "", Text(name, "dim"))
        return table


def _quotation(name: str, effects: PassageEffects, number: int) -> Iterator[RenderableType]:
    passage = effects.weights.passages[number]
    yield Text(f"\n{name}: {_place(passage)}", "bold")
    yield Text(quoted(passage.text, _QUOTE))


def _place(passage: Passage) -> str:
    where = f"tokens {token_range(passage.tokens)}"
    if passage.characters is None:
        return where
    first, stop = passage.characters
    return f"characters {first}–{stop - 1}, {where}"
