"""Parts of `regard explain`: the tokens, what was found, the strongest keys of a query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from regard.lens.naming.forward_pass import ForwardPass
from regard.lens.naming.heads import INFORMATIVE, HeadScores
from regard.lens.naming.roles import Role
from regard.steps import Steps
from regard.view.entries import WEIGHTS, Entries
from regard.view.shade import shade
from regard.view.terminal import figure_format, label
from regard.view.tokens import readable, visible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from torch import Tensor

__all__ = [
    "ACCENT",
    "UNNAMED",
    "NextTokens",
    "TokenStrip",
    "bar",
    "counted",
    "every_query",
    "findings",
    "heading",
    "named_token",
    "strongest_keys",
    "walk",
]

STRIP = 96
"""Maximum number of tokens in the strip; the others are counted."""
QUERIES = 40
"""Maximum number of queries in `every_query`; the others are counted."""
KEYS = 6
"""Number of a query's strongest keys that are shown; the weight of the others is summed."""

ACCENT = "#e5793a"
LESS = "#3f87b5"
"""Of what takes from the answer."""
UNNAMED = (Role.MIXED, Role.BETWEEN, Role.TOO_SHORT)
"""Roles of heads that do no single thing, or of which that is not known."""
_LABEL = 14  # terminal cells of a position and its token
_BAR = 5  # terminal cells of a bar of weight 1
_EIGHTHS = " ▏▎▍▌▋▊▉█"


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
    named = (head for head in ranked if head.role not in (*UNNAMED, Role.ALONE))
    if (best := next(named, None)) is not None:
        about = f"{best.words}, {best.evidence}"
        sentences.append(f"Head {best.layer}.{best.head}: {best.role.meaning} ({about}).")
        if best.sinks and best.role is not Role.FIRST:
            keys = [f"“{visible(result.tokens[key])}”" for key in best.sinks]
            sentences.append(f"It rests on {' and '.join(keys)}.")
    return Text(" ".join(sentences))


def strongest_keys(
    result: ForwardPass, heads: Sequence[HeadScores], query: int, entries: Entries = WEIGHTS
) -> RenderableType:
    """Render the strongest keys of one query in several heads, side by side."""
    row = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    row.add_row(*(_keys_of(result, head, query, entries) for head in heads))
    return row


def every_query(
    result: ForwardPass,
    steps: Steps,
    query: int,
    entries: Entries = WEIGHTS,
    own: Tensor | None = None,
) -> RenderableType:
    """Render the three strongest keys of every query in one head; in long texts, near one query.

    Args:
        result: the forward pass.
        steps: the head's.
        query: the query that is marked.
        entries: the view.
        own: the head's entries in it, of the first queries; None for the weights of the steps.
    """
    found = steps.weights if own is None else own.to(steps.weights)
    count, keys = found.shape
    sizes = found.abs().masked_fill(~steps.visible[:count, :keys], -1)
    top = sizes.topk(min(3, keys))
    most = float(sizes.max())
    number = entries.numbers(most)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("token", no_wrap=True)
    first, then = entries.columns
    for title in (first, then, then):
        table.add_column(title, no_wrap=True)
    shown = -1
    for i in _windows(count, query, QUERIES):
        if i > shown + 1:
            table.add_row(Text(f"… {i - shown - 1} more", "dim"))
        shown = i
        strongest = zip(top.values[i].tolist(), top.indices[i].tolist(), strict=True)
        cells = [
            Text.assemble(
                (f" {float(found[i, key]):{number}} ", shade(entries.part(size, most))),
                " ",
                named_token(result, key),
            )
            for size, key in strongest
            if size >= 0
        ]
        table.add_row(named_token(result, i, "reverse" if i == query else ""), *cells)
    if left := len(result.tokens) - shown - 1:
        table.add_row(Text(f"… {left} more", "dim"))
    return table


def walk(
    steps: Steps,
    result: ForwardPass,
    query: int,
    entries: Entries = WEIGHTS,
    own: Tensor | None = None,
) -> RenderableType:
    """Render one query from scores to weights: its strongest keys, and the sum of the others.

    A view that multiplies weights has one column more. The arguments are those of `every_query`.
    """
    count = int(steps.visible[query].sum())
    weights = steps.weights[query]
    found = weights if own is None else own[query].to(weights)
    index = found.abs().masked_fill(~steps.visible[query, : len(found)], -1).topk(min(KEYS, count))
    chosen = index.indices
    scores = steps.scores[query, chosen].tolist()
    scaled = steps.scaled[query, chosen].tolist()
    pattern = figure_format(max(map(abs, scores), default=0))
    most = float(index.values.max()) if count else 0.0
    viewed = own is not None
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("key", no_wrap=True)
    for title in ("query · key", f"× {steps.scale:.3g}", "softmax", *([entries.title] * viewed)):
        table.add_column(title, justify="right")
    table.add_column("")
    for key, score, logit in zip(chosen.tolist(), scores, scaled, strict=True):
        entry = float(found[key])
        table.add_row(
            named_token(result, key),
            format(score, pattern),
            format(logit, pattern),
            f"{float(weights[key]):.4f}",
            *([f"{entry:.4f}"] * viewed),
            bar(entries.part(entry, most), 4 * _BAR, ACCENT if entry >= 0 else LESS),
        )
    others = count - len(scores)
    if others:
        rest = max(float(weights.sum() - weights[chosen].sum()), 0)
        more = [f"{float(found.sum() - found[chosen].sum()):.4f}"] * viewed
        table.add_row(
            *(Text(cell, "dim") for cell in (_others(others), "", "", f"{rest:.4f}", *more))
        )
    return table


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
    left = f"; for {short} it is too short to tell" if short else ""
    return f"{what[0].upper()}{what[1:]} on this text: {counted(counts)}{left}."


def counted(roles: Mapping[Role, int]) -> str:
    """Say how many heads have each role, the most informative first."""
    return ", ".join(f"{roles[role]} {role}" for role in INFORMATIVE if roles.get(role))


def _keys_of(result: ForwardPass, head: HeadScores, query: int, entries: Entries) -> RenderableType:
    found = result.row(head, query) if entries.read is None else entries.read(head)[query]
    count = query + 1 if result.is_causal else len(result.tokens)
    top = found.abs().topk(min(KEYS, count))
    most = float(top.values.max())
    number = entries.numbers(most)
    table = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(width=_LABEL, no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(width=_BAR)
    for key in top.indices.tolist():
        entry = float(found[key])
        colour = ACCENT if entry >= 0 else LESS
        drawn = bar(entries.part(entry, most), _BAR, colour)
        table.add_row(named_token(result, key), f"{entry:{number}}", drawn)
    others = count - len(top.values)
    if others:
        rest = float(found.sum() - found[top.indices].sum())
        rest = max(rest, 0) if entries.are_weights else rest
        table.add_row(Text(_others(others), "dim"), Text(f"{rest:{number}}", "dim"))
    title = Text.assemble((f"layer {head.layer} head {head.head}", "bold"))
    return Group(title, Text(head.role, "dim"), table)


def named_token(result: ForwardPass, position: int, style: str = "") -> Text:
    """Return the position and the name of a token, of a fixed width at most."""
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
