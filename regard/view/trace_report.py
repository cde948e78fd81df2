"""The output of `regard trace --by tokens`: the shaded document, first tokens, what is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from textwrap import shorten
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from regard.lens import Deletion, Trace
from regard.view.shade import shade
from regard.view.tokens import readable, visible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

__all__ = ["MEANINGS", "TracedText", "after", "figure", "in_context", "order_name", "trace_report"]

MEANINGS = {
    "attention": "the weight that the answer's tokens give to it, a mean over all heads",
    "difference": "that weight less the one under a neutral question and answer",
    "moved": "weight times length of the value, as a share of all that heads move to the answer",
    "toward": "what heads add from it to the answer's logits; below 0 they lower them",
}
_FIRST = 10  # tokens in the table
_WHOLE = (
    600  # tokens of a document that is shown whole; of a longer one, the parts around the first
)
_AROUND = 15  # tokens that are shown on either side of one of the first
_QUOTE = 300  # characters of an answer
_QUOTED = 16  # characters around a token, at least, beside all measures


@dataclass(frozen=True)
class TracedText:
    """A trace, and the text that it is of.

    Args:
        found: the trace.
        pieces: what each token adds to the text; empty for one that only ends a character.
        answer: the answer's text.
        neutral: question and answer of the neutral run.
        lost: what the answer loses, by `order_name`; None if that was not measured.
        forwards: how many forward passes were made in all.
    """

    found: Trace
    pieces: Sequence[str]
    answer: str
    neutral: str
    lost: Deletion | None
    forwards: int

    @cached_property
    def places(self) -> list[tuple[int, int]]:
        """The tokens of each piece that can be seen, as start and stop."""
        starts = [at for at, piece in enumerate(self.pieces) if piece]
        return list(zip(starts, [*starts[1:], len(self.pieces)], strict=True))

    def values(self, measure: str, hops: int) -> list[float]:
        """Return the share of each token of the text."""
        values: list[float] = self.found.shares[measure][hops].nan_to_num().tolist()
        return values

    def largest(self, measure: str, hops: int) -> float:
        """Return the largest magnitude of a token of the document, the sinks left out."""
        values = self.values(measure, hops)
        own = set(range(*self.found.document)) - set(self.found.sinks)
        return max((abs(values[at]) for at in own), default=0.0) or 1.0


def after(hops: int) -> str:
    """Return a number of hops in words.

    >>> after(0), after(1), after(2)
    ('directly', 'through 1 hop', 'through 2 hops')
    """
    return "directly" if hops == 0 else f"through {hops} hop{'s' * (hops > 1)}"


def order_name(measure: str, hops: int) -> str:
    """Return the name of an order in `Deletion.changes`.

    >>> order_name("moved", 1)
    'moved, through 1 hop'
    """
    return f"{measure}, {after(hops)}"


def figure(measure: str, value: float) -> str:
    """Format a share: a part in percent, a logit as it is.

    >>> figure("moved", 0.0123), figure("difference", -0.0123), figure("toward", -1.234)
    ('1.23 %', '−1.23 %', '−1.23')
    """
    if measure == "toward":
        return signed(value)
    return f"{signed(100 * value).removeprefix('+')} %"


def in_context(text: TracedText, at: int, around: int = 3) -> tuple[str, str, str]:
    """Return what stands before a token, the token, and what stands after it."""
    first, stop = text.found.document
    before = "".join(text.pieces[max(first, at - around) : at])
    behind = "".join(text.pieces[at + 1 : min(stop, at + 1 + around)])
    token = text.pieces[at] or text.found.tokens[at]
    return readable(before), readable(token), readable(behind)


def trace_report(text: TracedText, measure: str) -> Iterator[RenderableType]:
    """Render what an answer took from a document, in the terminal.

    Args:
        text: the trace and its text.
        measure: the one that shades the document and sorts the table.
    """
    found, hops = text.found, text.found.hops
    yield Text.assemble(
        ("Answer", "bold"), f" {readable(shorten(text.answer, _QUOTE, placeholder=' …'))}"
    )
    yield Text(f"\nThe document, by {order_name(measure, hops)}", "bold")
    yield _shaded(text, measure, hops)
    yield _legend(figure(measure, text.largest(measure, hops)))
    yield Text("\nThe tokens with most", "bold")
    yield _Fitting(lambda width: _table(text, measure, hops, width))
    between = [found.between(measure, at) for at in (0, hops)][: 1 + (hops > 0)]
    yield Text(
        f"{measure}: {MEANINGS[measure]}. On question and answer themselves are "
        + ", ".join(
            f"{figure(measure, value)} {after(at)}"
            for at, value in zip((0, hops), between, strict=False)
        )
        + _on_sinks(text, measure, hops),
        "dim",
    )
    for name, why in found.missing.items():
        yield Text(f"{name} is not known of this model: {why}", "dim")
    if text.lost is not None:
        yield Text("\nWhat the answer loses if they are deleted", "bold")
        lost = text.lost
        yield _Fitting(lambda width: _curve(lost, width))
        yield Text(
            "Change of the answer's log-probability, in nats, if the first tokens are taken out of "
            f"the text; as it is {signed(text.lost.log_probability)}. random: a mean over "
            "orders at random.",
            "dim",
        )
    yield Text(f"{text.forwards} forward passes.", "dim")


def _on_sinks(text: TracedText, measure: str, hops: int) -> str:
    values = text.values(measure, hops)
    count = len(text.found.sinks)
    if not count or measure == "difference":
        return "."
    share = figure(measure, sum(values[at] for at in text.found.sinks))
    which = "sinks, which are" if count > 1 else "sink, which is"
    return f"; on {count} {which} left out, {share}."


def _shaded(text: TracedText, measure: str, hops: int) -> Text:
    """Return the document, or the parts of a long one around its first tokens."""
    first, stop = text.found.document
    shown = set(range(first, stop))
    if len(shown) > _WHOLE:
        some = text.found.ranked(measure, hops)[:_FIRST]
        shown &= {at + by for at in some for by in range(-_AROUND, _AROUND + 1)}
    values, largest = text.values(measure, hops), text.largest(measure, hops)
    sinks, line, last = set(text.found.sinks), Text(), first - 1
    for start, end in text.places:
        if start not in shown:
            continue
        if start > last + 1:
            line.append(f" … {start - last - 1} tokens … ", "dim")
        last = end - 1
        is_sink = bool(sinks & set(range(start, end)))
        style = "dim underline" if is_sink else shade(sum(values[start:end]) / largest)
        for number, part in enumerate(text.pieces[start].split("\n")):
            line.append("\n" * bool(number))
            line.append(readable(part), style)
    if last < stop - 1:
        line.append(f" … {stop - 1 - last} tokens", "dim")
    return line


def _legend(largest: str) -> Text:
    line = Text("shade: ", "dim")
    for part in (0.1, 0.2, 0.4, 0.6, 0.8):
        line.append(f" {part:g} ", shade(part))
    return line.append(f" of the largest, {largest}; underlined: sinks", "dim")


@dataclass(frozen=True)
class _Fitting:
    """A table made for the width that there is, so that no number is cut."""

    make: Callable[[int], Table]

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[Table]:
        yield self.make(options.max_width)


def _table(text: TracedText, measure: str, hops: int, width: int) -> Table:
    """Return the first tokens, by all measures or, where these do not fit, by the chosen one."""
    found, first = text.found, text.found.ranked(measure, hops)[:_FIRST]
    columns = {"token": [str(at) for at in first]}
    columns |= {
        name: [figure(name, text.values(name, hops)[at]) for at in first] for name in found.shares
    }
    if _wide(columns) + _QUOTED > width:
        columns = {name: columns[name] for name in ("token", measure)}
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    room = max(1, width - _wide(columns) - 2)
    table.add_column("in the text", no_wrap=True, overflow="ellipsis", max_width=room)
    for at, *numbers in zip(first, *columns.values(), strict=True):
        before, token, behind = in_context(text, at)
        table.add_row(
            *numbers, Text.assemble((before, "dim"), (visible(token), "bold"), (behind, "dim"))
        )
    return table


def _wide(columns: Mapping[str, Sequence[str]]) -> int:
    """Return the characters that columns take, with two after each."""
    return sum(2 + max(map(len, (name, *cells))) for name, cells in columns.items())


def _curve(lost: Deletion, width: int) -> Table:
    """Return the changes at all counts or, where these do not fit, at every other one and so on."""
    means = sorted(lost.means.items(), key=_by_mean)
    columns = {"first by": [name for name, _ in means], "mean": [signed(mean) for _, mean in means]}
    rows = [lost.changes[name].tolist() for name, _ in means]
    counts = {str(n): [signed(row[k]) for row in rows] for k, n in enumerate(lost.counts)}
    while _wide(columns | counts) > width and counts:
        counts = {name: counts[name] for name in [*counts][1::2]}
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in columns | counts:
        table.add_column(name, justify="left" if name == "first by" else "right", no_wrap=True)
    for row in zip(*(columns | counts).values(), strict=True):
        table.add_row(*row)
    return table


def _by_mean(one: tuple[str, float]) -> float:
    return one[1]


def signed(value: float) -> str:
    """Format a change with its sign.

    >>> signed(-0.5), signed(0.25), signed(-0.001)
    ('−0.50', '+0.25', '0.00')
    """
    rounded = round(value, 2)
    return f"{rounded:+.2f}".replace("-", "−") if rounded else "0.00"


def curves_of(lost: Deletion, measures: Mapping[str, object], hops: int) -> list[tuple[str, str]]:
    """Return measure and order of the curves of a number of hops, ``random`` last."""
    named = [(measure, order_name(measure, hops)) for measure in measures]
    return [*(one for one in named if one[1] in lost.changes), ("random", "random")]
