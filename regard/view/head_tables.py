"""Tables of heads in the terminal: a map of all, a line for some, sorted and filtered as asked."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from regard.lens.naming.forward_pass import ForwardPass
from regard.lens.naming.heads import INFORMATIVE, HeadScores
from regard.lens.naming.roles import PatternScores, Role
from regard.view.listing import ALL, COLUMNS, SHARES, Listing, values_of
from regard.view.summary import UNNAMED, counted, named_token

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from regard.lens import Effects

__all__ = ["FEW", "head_table", "needed_table"]

FEW = 48
"""Heads of a model that get a line each; of more, the most informative get one, and a map all."""
_LISTED = 12  # of many heads
_MAP_ROWS = 16  # of the map of many heads; a cell then stands for several heads
_MAP_COLUMNS = 76  # layers side by side


_PLAIN = {Role.SPREAD, *UNNAMED, Role.ALONE}
_SOMETIMES = ("separator", "next")
"""Columns that are left out where no head has a number: few separators, or a causal model."""


def head_table(result: ForwardPass, listing: Listing = ALL) -> RenderableType:
    """Render a line for each head: role, evidence, shares; the role's own share in bold.

    A narrow terminal shows as many whole columns as fit; the others are counted. Of more than `FEW`
    heads a map has a letter for each, and some have lines: the most informative, or the first in
    the order that is asked for. The others are counted by their roles.

    Args:
        result: the forward pass.
        listing: which heads have lines, and in which order.
    """
    heads = result.heads
    many = len(heads) > FEW
    ranked = heads.most_informative(len(heads)) if many else heads
    chosen = listing.of(ranked)
    listed = chosen[:_LISTED] if len(chosen) > FEW else chosen
    parts: list[RenderableType] = [*_map(heads), Text()] if many else []
    if listed:
        parts.append(_HeadTable(result, listed, listing.column))
    else:
        parts.append(Text(f"no head has the role: {listing.role}"))
    left = Counter(one.role for one in heads)
    left.subtract(one.role for one in listed)
    if left.total():
        more = "more head" if listed else "head"
        count = f"{left.total()} {more}{'s' if left.total() > 1 else ''}"
        parts.append(Text(f"… {count}: {counted(left)}", "dim"))
    elif not many:
        parts += [Text(line, "dim") for line in _undecided(result)]
    return Group(*parts)


_SIGNS = {
    Role.INDUCTION: "I",
    Role.DUPLICATE: "D",
    Role.PREVIOUS: "P",
    Role.NEXT: "n",
    Role.SEPARATOR: "s",
    Role.LOCAL: "N",
    Role.CURRENT: "C",
    Role.FIRST: "f",
    Role.SPREAD: "·",
}


def _map(heads: Sequence[HeadScores]) -> Iterable[Text]:
    """Yield the heads as letters for their roles: a column a layer, a row a head."""
    by_layer: dict[int, list[HeadScores]] = {}
    for head in heads:
        by_layer.setdefault(head.layer, []).append(head)
    most = max(map(len, by_layer.values()))
    together = -(-most // _MAP_ROWS)
    layers = sorted(by_layer)
    for first in range(0, len(layers), _MAP_COLUMNS):
        part = layers[first : first + _MAP_COLUMNS]
        tens = "".join(str(n // 10 % 10) if n % 10 == 0 else " " for n in part)
        yield Text(f"    {tens}\n    {''.join(str(n % 10) for n in part)} layer", "dim")
        for row in range(0, most, together):
            line = Text(f"{row:>3} ", "dim")
            for layer in part:
                own = by_layer[layer][row : row + together]
                best = min(own, key=lambda one: INFORMATIVE.index(one.role), default=None)
                sign = " " if best is None else _SIGNS.get(best.role, "–")
                line.append(sign, "bold" if best and best.role not in _PLAIN else "dim")
            yield line
    used = {head.role for head in heads}
    shown = [role for role in _SIGNS if role in used]
    named = [f"{_SIGNS[role]} {role.removesuffix(' token')}" for role in shown]
    if used - set(_SIGNS):
        named.append("– no role")
    together_note = f"; each letter the most telling of {together} heads" if together > 1 else ""
    yield Text(f"row: head; {', '.join(named)}{together_note}", "dim")


def needed_table(
    result: ForwardPass, needed: Effects, query: int, shown: Sequence[HeadScores]
) -> RenderableType:
    """Render the estimated effects of heads on a next token, and where each looks.

    Args:
        result: the forward pass over the text.
        needed: over heads, by the gradient.
        query: the token before the next one.
        shown: the heads.
    """
    effects = {one.place: one.value for one in needed.largest(needed.values.numel())}
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("head", justify="right", no_wrap=True)
    table.add_column("Δ log p, estimated", justify="right", no_wrap=True)
    table.add_column("role", no_wrap=True)
    table.add_column("looks most at", no_wrap=True)
    for head in shown:
        weight, key = result.row(head, query).max(dim=-1)
        looks = Text.assemble(f"{float(weight):.2f} ", named_token(result, int(key)))
        change = f"{effects[head.layer, head.head]:+.3f}".replace("-", "−")
        table.add_row(f"{head.layer}.{head.head}", change, Text(head.role), looks)
    left = needed.values.numel() - len(shown)
    note = "to first order: the gradient times what switching the head off changes"
    return Group(table, Text(f"… {left} more; {note}", "dim"))


@dataclass(frozen=True)
class _HeadTable:
    result: ForwardPass
    heads: Sequence[HeadScores]
    first: str | None = None
    """The column of scores that comes first."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        every = len(self._columns)
        shown = every
        while shown and self._width(shown, console, options) > options.max_width:
            shown -= 1
        yield self._table(shown, options.max_width)
        if left := every - shown:
            columns = f"{left} more column{'s' if left > 1 else ''}"
            yield Text(f"… {columns} in a wider terminal", "dim")

    @cached_property
    def _columns(self) -> list[int]:
        """Places of the columns that there are, in their order."""
        known = [values_of(head) for head in self.heads]
        there = [
            place
            for place, name in enumerate(COLUMNS)
            if name not in _SOMETIMES or any(values[name] is not None for values in known)
        ]
        return sorted(there, key=lambda place: COLUMNS[place] != self.first)

    def _width(self, shown: int, console: Console, options: ConsoleOptions) -> int:
        boundless = options.update(max_width=sys.maxsize)
        return console.measure(self._table(shown, sys.maxsize), options=boundless).maximum

    def _table(self, shown: int, width: int) -> Table:
        """Build the table with its first `shown` columns of scores, for `width` terminal cells."""
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
        table.add_column("head", justify="right", min_width=len("head"))
        table.add_column("role", no_wrap=True, max_width=max(1, width - len("head ")))
        order = self._columns[:shown]
        for place in order:
            table.add_column(COLUMNS[place], justify="right")
        for head in self.heads:
            role = Text(head.role, "dim" if head.role in _PLAIN else "bold")
            cells = _cells(head)
            table.add_row(f"{head.layer}.{head.head}", role, *(cells[place] for place in order))
        if self.result.uniform.spread is not None:
            cells = [Text(), Text(), *_shares(self.result.uniform, None)]
            uniform = (Text(cells[place].plain, "dim") for place in order)
            table.add_row("", Text("(a uniform head)", "dim"), *uniform)
        return table


def _cells(head: HeadScores) -> list[Text]:
    """Return the columns of a head, with the role's share in bold."""
    queries = "–" if head.queries is None else str(head.queries)
    role = head.undecided if head.role.is_open else head.role
    return [Text(head.estimate or "–"), Text(queries), *_shares(head, role)]


def _shares(scores: PatternScores, role: Role | None) -> list[Text]:
    values: list[tuple[float | None, int, Role | None]] = [(scores.resting, 2, None)]
    values += [(scores.share(share), 2, share) for share in SHARES]
    values += [(scores.spread, 2, Role.SPREAD), (scores.distance, 1, Role.LOCAL)]
    return [
        Text(
            "–" if value is None else f"{value:.{digits}f}",
            "bold" if names_it is not None and role is names_it else "",
        )
        for value, digits, names_it in values
    ]


def _undecided(result: ForwardPass) -> Iterable[str]:
    """Yield a sentence on the heads with an undecided role."""
    heads: dict[Role, list[str]] = {}
    for head in result.heads:
        if head.undecided is not None:
            heads.setdefault(head.undecided, []).append(f"{head.layer}.{head.head}")
    if heads:
        listed = "; ".join(f"{role} of {', '.join(names)}" for role, names in heads.items())
        yield f"Perhaps {listed}."
