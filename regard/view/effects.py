"""The output of `regard effects`: the heads and the tokens that a prediction depends on.

Axes: H heads, T tokens.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.lens import Effect, Effects, LogitParts
from regard.lens.naming.forward_pass import ForwardPass
from regard.lens.naming.heads import HeadScores
from regard.view.listing import ALL, Listing
from regard.view.summary import ACCENT, NextTokens, TokenStrip, bar, heading
from regard.view.terminal import label
from regard.view.tokens import visible

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType, RenderResult
    from torch import Tensor

    from regard._shapes import Float

__all__ = ["effects_report", "logit_parts_text"]

_ROWS = 8  # maximum of a table; the others are counted
_BAR, _SHORT = 14, 5  # terminal cells of the longest bar, on a wide terminal and on a narrow one
_PARTS = 10  # of a logit that are listed
_LABEL = 16  # terminal cells of a token
_GAIN = "#4a86c5"  # bar of an effect above 0

_ROUNDING = 0.005
"""Nats below which an effect is shown as 0.00; such effects are not reported as needed."""


def effects_report(
    result: ForwardPass,
    target: str,
    measured: Sequence[Effects],
    added: Sequence[bool] = (),
    listing: Listing = ALL,
) -> Iterator[RenderableType]:
    """Render the effects on the prediction after the last token.

    Args:
        result: the forward pass over the text.
        target: the token whose log-probability is the target of the effects.
        measured: effects over heads, over keys, or both.
        added: True for each token that the user did not write.
        listing: which heads the table lists, and in which order.
    """
    last = len(result.tokens) - 1
    weights = torch.stack([layer.rows[last] for layer in result.layers]).double().cpu()
    yield Text()
    subjects = [f"the probability of “{visible(target)}”", "it"]
    found = (_finding(*pair, weights) for pair in zip(measured, subjects, strict=False))
    yield Text(" ".join(found))
    yield heading(f"{len(result.tokens)} token{'s' if last else ''}, token {last} marked")
    yield TokenStrip(result.tokens, last, added)
    yield NextTokens(result, last)
    probability = _probability(measured[0].unchanged)
    for effects in measured:
        what = "heads" if effects.over == "heads" else "tokens"
        yield heading(f"The {what} that {visible(target)} ({probability}) rests on")
        if what == "heads":
            table = _heads(effects, result, weights, listing)
        else:
            table = _keys(effects, weights)
        if table.rows:
            yield table
        shown = {one.place for _, one, _ in table.rows}
        ranked = effects.largest(effects.values.numel())
        if left := [abs(one.value) for one in ranked if one.place not in shown]:
            most = f"below {_ROUNDING}" if left[0] < _ROUNDING else f"at most {left[0]:.2f}"
            more = f"… {len(left)} more, each {most}"
            none = "none" if listing.role is None else f"no head has the role {listing.role}"
            yield Text(more if table.rows else f"{none}: each {most}", "dim")


def _finding(effects: Effects, subject: str, weights: Float[Tensor, "N H T"]) -> str:
    """Describe what the prediction needs most; for tokens, also which is looked at most.

    Args:
        effects: effects over heads or over keys.
        subject: the subject of the sentence, such as "it".
        weights: the last query's weights in each head.
    """
    if effects.over == "heads":
        needed = _needed(effects, effects.places)
        if needed is None:
            return f"No head by itself is needed for {subject}."
        return "Without head {}.{} {} {}.".format(*needed.place, subject, _falls(effects, needed))
    places = [place for place in effects.places if place[1] < weights.shape[-1]]
    if not places:
        return "A single token has no later one to be hidden from."
    means = [float(weights[..., slice(*place)].sum(dim=-1).mean()) for place in places]
    looked = effects.places.index(places[means.index(max(means))])
    most = f"{_name(str(effects.labels[0][looked]))} is looked at most"
    needed = _needed(effects, places)
    if needed is None:
        return f"{most}, but nothing in this text is needed for it."
    also = "it is also looked at most" if needed.place == effects.places[looked] else most
    return f"Without token {_name(needed.name)} {subject} {_falls(effects, needed)}; {also}."


def _needed(effects: Effects, places: Sequence[tuple[int, ...]]) -> Effect | None:
    """Return the most negative effect; None if it is shown as 0.00."""
    every = effects.largest(effects.values.numel())
    least = min((one for one in every if one.place in places), key=lambda one: one.value)
    return least if least.value <= -_ROUNDING else None


def _falls(effects: Effects, effect: Effect) -> str:
    before, after = effects.unchanged, effects.unchanged + effect.value
    return f"falls from {_probability(before)} to {_probability(after)}"


@dataclass(frozen=True)
class _Table:
    """A row per effect; on a narrow terminal with a short bar and fewer columns."""

    effects: Effects
    first: str
    """Name of the first column."""
    columns: tuple[str, ...]
    """Names of the last columns."""
    rows: Sequence[tuple[str, Effect, tuple[str, ...]]]
    """Cell of the first column, effect, and cells of the last columns."""

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


def _heads(
    effects: Effects, result: ForwardPass, weights: Float[Tensor, "N H T"], listing: Listing
) -> _Table:
    rows = []
    largest = _largest(effects)
    if listing != ALL:
        by_place = {one.place: one for one in effects.largest(effects.values.numel())}
        own: dict[tuple[int, ...], HeadScores] = {
            (one.layer, one.head): one for one in result.heads
        }
        chosen = listing.of(own[place] for place in by_place)[:_ROWS]
        largest = [by_place[one.layer, one.head] for one in chosen]
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
    for effect in _largest(effects):
        row = weights[..., slice(*effect.place)].sum(dim=-1)  # (N, H): the sum over a block
        layer, head = divmod(int(row.argmax()), row.shape[1])
        cells = f"{float(row.max()):.2f} in {layer}.{head}", f"{float(row.mean()):.2f}"
        rows.append((_name(effect.name), effect, cells))
    return _Table(effects, "token", ("largest weight", "mean"), rows)


def _largest(effects: Effects) -> list[Effect]:
    """Return the largest effects, without those shown as 0.00."""
    return [one for one in effects.largest(_ROWS) if abs(one.value) >= _ROUNDING]


def _probability(logarithm: float) -> str:
    probability = math.exp(logarithm)
    return f"{probability:.2f}" if probability >= 0.005 else f"{probability:.0e}"


def _name(name: str) -> str:
    """Name a block of keys by its positions, and its tokens as far as they fit."""
    where, _, tokens = name.partition(" ")
    return label(where, tokens, _LABEL)


def logit_parts_text(parts: LogitParts) -> str:
    """Return the parts of a logit as a table; the first line shows that they add up to it."""
    console = Console(highlight=False, width=80)
    shown = parts.largest(_PARTS)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("part", "share", "most of it from", "that token's"):
        table.add_column(title, justify="right" if title in ("share", "that token's") else "left")
    for part in shown:
        source, amount = "", ""
        if part.source is not None and part.from_source is not None:
            source = label(part.source, parts.tokens[part.source], _LABEL)
            amount = f"{part.from_source:+.2f}"
        table.add_row(part.name, f"{part.value:+.2f}", source, amount)
    rest = [part.value for part in parts.parts() if part not in shown]
    table.add_row(f"{len(rest)} other parts", f"{sum(rest):+.2f}", "", "")
    with console.capture() as capture:
        console.print(
            f"logit of {parts.target}: {parts.logit:.3f} = {parts.total:.3f}, the sum of its parts"
        )
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().rstrip("\n").splitlines())
