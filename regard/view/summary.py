"""Parts of `regard explain`: the tokens, a line for each head, the strongest keys of a query."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from regard.lens.naming.forward_pass import ForwardPass
from regard.lens.naming.heads import INFORMATIVE, HeadScores
from regard.lens.naming.roles import PatternScores, Role
from regard.steps import Steps
from regard.view.shade import shade
from regard.view.terminal import figure_format, label
from regard.view.tokens import readable, visible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from regard.lens import Effects

__all__ = [
    "ACCENT",
    "FEW",
    "NextTokens",
    "TokenStrip",
    "bar",
    "every_query",
    "findings",
    "head_table",
    "heading",
    "needed_table",
    "strongest_keys",
    "walk",
]

STRIP = 96
"""Maximum number of tokens in the strip; the others are counted."""
QUERIES = 40
"""Maximum number of queries in `every_query`; the others are counted."""
KEYS = 6
"""Number of a query's strongest keys that are shown; the weight of the others is summed."""

FEW = 48
"""Heads of a model that get a line each; of more, the most informative get one, and a map all."""
_LISTED = 12  # of many heads
_MAP_ROWS = 16  # of the map of many heads; a cell then stands for several heads
_MAP_COLUMNS = 76  # layers side by side

ACCENT = "#e5793a"
_UNNAMED = (Role.MIXED, Role.BETWEEN, Role.TOO_SHORT)
_PLAIN = {Role.SPREAD, *_UNNAMED, Role.ALONE}
_LABEL = 14  # terminal cells of a position and its token
_BAR = 5  # terminal cells of a bar of weight 1
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_SHARES = (Role.PREVIOUS, Role.FIRST, Role.CURRENT, Role.INDUCTION, Role.DUPLICATE)
_NAMES = (role.removesuffix(" token") for role in _SHARES)
_COLUMNS = ("score", "queries", *_NAMES, "spread", "distance")


def heading(text: str) -> Text:
    """Return a heading after a blank line."""
    return Text(f"\n{text}", "bold")


@dataclass(frozen=True)
class TokenStrip:
    """The tokens in order, separated by bars, with the query marked; no token is split."""

    tokens: Sequence[str]
    query: int
    added: Sequence[bool] = ()
    """True for each token that the user did not write: it is dim."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = Text()
        for piece, ends_line in self._pieces():
            if line and line.cell_len + piece.cell_len > options.max_width:
                yield line
                line = Text()
            line.append_text(piece)
            if ends_line:
                yield line
                line = Text()
        if line:
            yield line

    def _pieces(self) -> Iterable[tuple[Text, bool]]:
        shown = -1
        for i in _windows(len(self.tokens), self.query, STRIP):
            if i > shown + 1:
                yield Text(f" … {i - shown - 1} more … ", "dim"), False
            token, shown = self.tokens[i], i
            text = readable(token) if token.strip(" ") else visible(token)  # only spaces: as signs
            style = "dim" if i < len(self.added) and self.added[i] else ""
            style = "reverse" if i == self.query else style
            yield Text.assemble((text, style), ("│", "dim")), "\n" in token
        if left := len(self.tokens) - shown - 1:
            yield Text(f" … {left} more", "dim"), False


@dataclass(frozen=True)
class NextTokens:
    """The likeliest tokens after one token, as many as fit on a line."""

    result: ForwardPass
    query: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.query not in self.result.predictions:  # of an encoder
            return
        token = visible(self.result.tokens[self.query])
        line = Text.assemble((f"after {self.query} ", "dim"), token, ("  →", "dim"))
        for number, (name, probability) in enumerate(self.result.predictions[self.query]):
            piece = Text.assemble(f"  {visible(name)} ", (f"{probability:.2f}", "dim"))
            if number and line.cell_len + piece.cell_len > options.max_width:
                break
            line.append_text(piece)
        yield line


def findings(result: ForwardPass, query: int) -> Text:
    """Describe in a few sentences the prediction after one token and the roles of the heads."""
    sentences = []
    if query in result.predictions:
        token, probability = result.predictions[query][0]
        expected = f"“{visible(token)}” ({probability:.2f})"
        sentences.append(f"After “{visible(result.tokens[query])}” the model expects {expected}.")
    sentences.append(_counted(result.heads))
    ranked = result.heads.most_informative(len(result.heads))
    named = (head for head in ranked if head.role not in (*_UNNAMED, Role.ALONE))
    if (best := next(named, None)) is not None:
        about = f"{best.role}, {best.evidence}"
        sentences.append(f"Head {best.layer}.{best.head}: {best.role.meaning} ({about}).")
    return Text(" ".join(sentences))


def head_table(result: ForwardPass) -> RenderableType:
    """Render a line for each head: role, evidence, shares; the role's own share in bold.

    A narrow terminal shows as many whole columns as fit; the others are counted. Of more than `FEW`
    heads a map has a letter for each, and the most informative have lines.
    """
    if len(result.heads) > FEW:
        listed = result.heads.most_informative(_LISTED)
        left = Text(f"… {len(result.heads) - _LISTED} more heads", "dim")
        return Group(*_map(result.heads), Text(), _HeadTable(result, listed), left)
    undecided = [Text(line, "dim") for line in _undecided(result)]
    return Group(_HeadTable(result, result.heads), *undecided)


_SIGNS = {
    Role.INDUCTION: "I",
    Role.DUPLICATE: "D",
    Role.PREVIOUS: "P",
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


def needed_table(result: ForwardPass, needed: Effects, query: int, count: int) -> RenderableType:
    """Render the heads with the largest estimated effects on a next token, and where each looks.

    Args:
        result: the forward pass over the text.
        needed: over heads, by the gradient.
        query: the token before the next one.
        count: how many heads.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("head", justify="right", no_wrap=True)
    table.add_column("Δ log p, estimated", justify="right", no_wrap=True)
    table.add_column("role", no_wrap=True)
    table.add_column("looks most at", no_wrap=True)
    largest = needed.largest(count)
    for one in largest:
        head = result.heads.at(*one.place)
        weight, key = result.row(head, query).max(dim=-1)
        looks = Text.assemble(f"{float(weight):.2f} ", _name(result, int(key)))
        change = f"{one.value:+.3f}".replace("-", "−")
        table.add_row("{}.{}".format(*one.place), change, Text(head.role), looks)
    left = needed.values.numel() - len(largest)
    note = "to first order: the gradient times what switching the head off changes"
    return Group(table, Text(f"… {left} more; {note}", "dim"))


@dataclass(frozen=True)
class _HeadTable:
    result: ForwardPass
    heads: Sequence[HeadScores]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = len(_COLUMNS)
        while shown and self._width(shown, console, options) > options.max_width:
            shown -= 1
        yield self._table(shown, options.max_width)
        if left := len(_COLUMNS) - shown:
            columns = f"{left} more column{'s' if left > 1 else ''}"
            yield Text(f"… {columns} in a wider terminal", "dim")

    def _width(self, shown: int, console: Console, options: ConsoleOptions) -> int:
        boundless = options.update(max_width=sys.maxsize)
        return console.measure(self._table(shown, sys.maxsize), options=boundless).maximum

    def _table(self, shown: int, width: int) -> Table:
        """Build the table with its first `shown` columns of scores, for `width` terminal cells."""
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
        table.add_column("head", justify="right", min_width=len("head"))
        table.add_column("role", no_wrap=True, max_width=max(1, width - len("head ")))
        for name in _COLUMNS[:shown]:
            table.add_column(name, justify="right")
        for head in self.heads:
            role = Text(head.role, "dim" if head.role in _PLAIN else "bold")
            table.add_row(f"{head.layer}.{head.head}", role, *_cells(head)[:shown])
        if self.result.uniform.spread is not None:
            uniform = (
                Text(cell.plain, "dim")
                for cell in (Text(), Text(), *_shares(self.result.uniform, None))[:shown]
            )
            table.add_row("", Text("(a uniform head)", "dim"), *uniform)
        return table


def strongest_keys(result: ForwardPass, heads: Sequence[HeadScores], query: int) -> RenderableType:
    """Render the strongest keys of one query in several heads, side by side."""
    row = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    row.add_row(*(_keys_of(result, head, query) for head in heads))
    return row


def every_query(result: ForwardPass, steps: Steps, query: int) -> RenderableType:
    """Render the three strongest keys of every query in one head; in long texts, near one query."""
    visible = steps.weights.masked_fill(~steps.visible, -1)
    top = visible.topk(min(3, len(result.tokens)))
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("token", no_wrap=True)
    for title in ("attends most to", "then to", "then to"):
        table.add_column(title, no_wrap=True)
    shown = -1
    for i in _windows(len(result.tokens), query, QUERIES):
        if i > shown + 1:
            table.add_row(Text(f"… {i - shown - 1} more", "dim"))
        shown = i
        keys = zip(top.values[i].tolist(), top.indices[i].tolist(), strict=True)
        cells = [
            Text.assemble((f" {weight:.2f} ", shade(weight)), " ", _name(result, key))
            for weight, key in keys
            if weight >= 0
        ]
        table.add_row(_name(result, i, "reverse" if i == query else ""), *cells)
    if left := len(result.tokens) - shown - 1:
        table.add_row(Text(f"… {left} more", "dim"))
    return table


def walk(steps: Steps, result: ForwardPass, query: int) -> RenderableType:
    """Render one query from scores to weights: its strongest keys, and the sum of the others."""
    count = int(steps.visible[query].sum())
    weights = steps.weights[query]
    top = weights.topk(min(KEYS, count))
    scores = steps.scores[query, top.indices].tolist()
    scaled = steps.scaled[query, top.indices].tolist()
    pattern = figure_format(max(map(abs, scores)))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("key", no_wrap=True)
    for title in ("query · key", f"× {steps.scale:.3g}", "softmax"):
        table.add_column(title, justify="right")
    table.add_column("")
    for key, score, logit, weight in zip(
        top.indices.tolist(), scores, scaled, top.values.tolist(), strict=True
    ):
        table.add_row(
            _name(result, key),
            format(score, pattern),
            format(logit, pattern),
            f"{weight:.4f}",
            bar(weight, 4 * _BAR),
        )
    others = count - len(scores)
    if others:
        rest = float(weights.sum() - top.values.sum())
        table.add_row(Text(_others(others), "dim"), "", "", Text(f"{max(rest, 0):.4f}", "dim"))
    return table


def _cells(head: HeadScores) -> list[Text]:
    """Return the columns of a head, with the role's share in bold."""
    queries = "–" if head.queries is None else str(head.queries)
    role = head.undecided if head.role.is_open else head.role
    return [Text(head.estimate or "–"), Text(queries), *_shares(head, role)]


def _shares(scores: PatternScores, role: Role | None) -> list[Text]:
    values = [(scores.share(share), 2, share) for share in _SHARES]
    values += [(scores.spread, 2, Role.SPREAD), (scores.distance, 1, Role.LOCAL)]
    return [
        Text("–" if value is None else f"{value:.{digits}f}", "bold" if role is names_it else "")
        for value, digits, names_it in values
    ]


def _counted(heads: Sequence[HeadScores]) -> str:
    """Describe how many heads have each role, the most informative first."""
    counts = Counter(head.role for head in heads)
    if counts[Role.ALONE]:
        return "A single token can only attend to itself."
    what = f"what its {len(heads)} heads do" if len(heads) > 1 else "what its head does"
    short = counts.pop(Role.TOO_SHORT, 0)
    if not counts:
        cure = "a longer one would, or one that repeats itself"
        return f"The text is too short to tell {what}; {cure}."
    named = ", ".join(f"{counts[role]} {role}" for role in INFORMATIVE if counts[role])
    left = f"; for {short} it is too short to tell" if short else ""
    return f"{what[0].upper()}{what[1:]} on this text: {named}{left}."


def _undecided(result: ForwardPass) -> Iterable[str]:
    """Yield a sentence on the heads with an undecided role."""
    heads: dict[Role, list[str]] = {}
    for head in result.heads:
        if head.undecided is not None:
            heads.setdefault(head.undecided, []).append(f"{head.layer}.{head.head}")
    if heads:
        listed = "; ".join(f"{role} of {', '.join(names)}" for role, names in heads.items())
        yield f"Perhaps {listed}."


def _keys_of(result: ForwardPass, head: HeadScores, query: int) -> RenderableType:
    weights = result.row(head, query)
    count = query + 1 if result.is_causal else len(result.tokens)
    top = weights.topk(min(KEYS, count))
    table = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(width=_LABEL, no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(width=_BAR)
    for weight, key in zip(top.values.tolist(), top.indices.tolist(), strict=True):
        table.add_row(_name(result, key), f"{weight:.2f}", bar(weight, _BAR))
    others = count - len(top.values)
    if others:
        rest = max(float(weights.sum() - top.values.sum()), 0)
        table.add_row(Text(_others(others), "dim"), Text(f"{rest:.2f}", "dim"))
    title = Text.assemble((f"layer {head.layer} head {head.head}", "bold"))
    return Group(title, Text(head.role, "dim"), table)


def _name(result: ForwardPass, position: int, style: str = "") -> Text:
    number, token = label(position, result.tokens[position], _LABEL).split(" ", 1)
    return Text.assemble((f"{number:>3} ", "dim"), (token, style))


def _others(count: int) -> str:
    return f"{count} other{'s' if count > 1 else ''}"


def bar(weight: float, cells: int, style: str = ACCENT) -> Text:
    """Return a bar for a weight; weight 1 is `cells` terminal cells long."""
    eighths = round(max(0.0, min(1.0, weight)) * cells * 8)
    return Text("█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip(), style)


def _windows(length: int, around: int, most: int) -> Iterable[int]:
    """Yield the positions to show: all, or the first quarter and those around one."""
    if length <= most:
        return range(length)
    head = most // 4
    size = most - head
    start = max(head, min(around - size // 2, length - size))
    return (*range(head), *range(start, start + size))
