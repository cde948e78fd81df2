"""The output of `regard trace --by passages`: weight and effect of each passage, and quotations."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from regard.lens import Effects, Passage, SpanWeights
from regard.view.summary import ACCENT, bar
from regard.view.tokens import readable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

__all__ = ["passages_report"]

_ROWS = 12  # maximum of the table; the others are counted
_BAR = 8  # terminal cells of the longest bar
_LEAST = 20  # minimum terminal cells of a passage, if there is room
_TEXT = 200  # maximum characters of a passage before it is cut to its cell
_QUOTE = 700  # maximum characters of a quotation
_GAIN = "#4a86c5"  # bar of an effect above 0
_ABOUT = (
    "Weight: what the queries that predict the answer give to the passage, sinks left out; the "
    "mean over {heads}. Difference: that less what the passage gets where question and answer are "
    "{neutral}."
)


def passages_report(
    passages: Sequence[Passage],
    weights: SpanWeights,
    effects: Effects,
    answer: str,
    neutral: str,
) -> Iterator[RenderableType]:
    """Render which passages an answer looked at and which it needed.

    Args:
        passages: the passages of a document.
        weights: the weights of the answer's queries on the passages, against a neutral run.
        effects: effects of the passages on the answer's log-probability.
        answer: the answer's text.
        neutral: question and answer of the neutral run.
    """
    yield Text.assemble(("Answer", "bold"), f" {_quoted(answer, _QUOTE)}")
    count = len(passages)
    yield Text(f"\n{count} passage{'s'[: count > 1]}, by what the answer needs", "bold")
    order = effects.values.argsort(stable=True).tolist()
    yield _Table(passages, weights, effects, order[:_ROWS])
    left = count - _ROWS
    if left > 0:
        yield Text(f"… {left} more passage{'s'[: left > 1]}; --json has all", "dim")
    looked, needed = int(weights.difference[:count].argmax()), order[0]
    same = looked == needed
    yield from _quotation("Looked at and needed most" if same else "Needed most", passages[needed])
    if not same:
        yield from _quotation("Looked at most", passages[looked])
    yield Text(f"\n{_summary_of(effects)}", "dim")
    yield Text(_ABOUT.format(heads=_heads_of(weights), neutral=readable(neutral)), "dim")
    yield Text("Looked at and needed are two things; each Δ is of one passage alone.", "dim")


@dataclass(frozen=True)
class _Table:
    """A row per passage, as wide as the terminal; on a narrow one without bars."""

    passages: Sequence[Passage]
    weights: SpanWeights
    effects: Effects
    numbers: Sequence[int]
    """Indices of the passages to show, in order."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        boundless = options.update(max_width=sys.maxsize)
        for bar_cells, least in ((_BAR, _LEAST), (0, _LEAST), (0, 0)):
            numbers = console.measure(self._table(bar_cells, 1), options=boundless).maximum
            if numbers - 1 + least <= options.max_width:
                break
        yield self._table(bar_cells, max(options.max_width - numbers + 1, 1))

    def _table(self, bar_cells: int, text_cells: int) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        blank = [""] * bool(bar_cells)
        for name in ("difference", *blank, "weight", "Δ log p", *blank, "tokens"):
            table.add_column(name, justify="right" if name else "left", no_wrap=True)
        table.add_column("passage"[:text_cells], no_wrap=True)
        means, changes = self.weights.mean.tolist(), self.effects.values.tolist()
        differences = self.weights.difference.tolist()
        most = max(map(abs, differences[: len(changes)])) or 1.0
        largest = max(map(abs, changes)) or 1.0

        def row(place: int, change: float | None, tokens: str, text: Text) -> None:
            difference, bars = differences[place], [Text(), Text()]
            if change is not None:
                bars = [
                    bar(abs(value) / top, bar_cells, colour)
                    for value, top, colour in (
                        (difference, most, ACCENT if difference > 0 else _GAIN),
                        (change, largest, ACCENT if change < 0 else _GAIN),
                    )
                ]
            cells: list[RenderableType] = [
                *(_signed(difference, 3), bars[0], f"{means[place]:.3f}"),
                *("" if change is None else _signed(change), bars[1]),
            ]
            shown = [cell for n, cell in enumerate(cells) if bar_cells or n not in (1, 4)]
            text.truncate(max(text_cells, 1), overflow="ellipsis")
            table.add_row(*shown, tokens, text)

        for number in self.numbers:
            passage = self.passages[number]
            text = Text(_quoted(passage.text, _TEXT))
            row(number, changes[number], _token_range(passage.tokens), text)
        count = len(self.weights.keys[-2])
        rest = (f"{count} sink{'' if count == 1 else 's'}", "elsewhere")
        for place, name in enumerate(rest, len(changes)):
            row(place, None, "", Text(name, "dim"))
        return table


def _quotation(name: str, passage: Passage) -> Iterator[RenderableType]:
    yield Text(f"\n{name}: {_place(passage)}", "bold")
    yield Text(_quoted(passage.text, _QUOTE))


def _place(passage: Passage) -> str:
    where = f"tokens {_token_range(passage.tokens)}"
    if passage.characters is None:
        return where
    first, stop = passage.characters
    return f"characters {first}–{stop - 1}, {where}"


def _summary_of(effects: Effects) -> str:
    """Describe Δ, and give the log-probability with all passages hidden."""
    first, stop = effects.hidden_from or (0, 0)
    queries = f"quer{'y' if stop == first + 1 else 'ies'} {_token_range((first, stop))}"
    return (
        "Δ: change of the answer's log-probability, in nats, where the passage is hidden from "
        f"{queries} in every head; as it is {_signed(effects.unchanged)}, with all passages "
        f"hidden {_signed(effects.unchanged + (effects.without_all or 0))}."
    )


def _heads_of(weights: SpanWeights) -> str:
    layers = f"layer{'' if len(weights.layers) == 1 else 's'} {_listed(weights.layers)}"
    return f"head{'' if len(weights.heads) == 1 else 's'} {_listed(weights.heads)} of {layers}"


def _quoted(text: str, width: int) -> str:
    """Join the lines of a text, and cut it to a number of characters."""
    return readable(shorten(text, width, placeholder=" …"))


def _signed(value: float, digits: int = 2) -> str:
    """Format a change with its sign."""
    return f"{value:+.{digits}f}".replace("-", "−")


def _token_range(span: tuple[int, int]) -> str:
    """Format the first and the last token."""
    first, stop = span
    return str(first) if stop == first + 1 else f"{first}–{stop - 1}"


def _listed(numbers: Sequence[int]) -> str:
    """Format numbers; many consecutive ones as the first and the last."""
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]}–{numbers[-1]}"
    return ", ".join(map(str, numbers))
