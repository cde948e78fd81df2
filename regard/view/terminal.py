"""The steps of an attention call as small tables, as in a calculation by hand.

Every step has its name, its shape with axis letters, a caption and its numbers; tables are placed
side by side if they fit. Of long matrices the first `ROWS` rows and `COLUMNS` columns are shown
(fewer columns in a narrow terminal), of several batch entries and heads the first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text
from torch import Tensor

from regard.steps import Step, Steps
from regard.view.shade import legend, shade
from regard.view.tokens import visible

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType, RenderResult

__all__ = ["COLUMNS", "ROWS", "as_text", "figure_format", "label", "step_tables"]

ROWS = 12
COLUMNS = 12

_AXES = {
    "query": "LD",
    "key": "SD",
    "value": "Sv",
    "context": "Lv",
    "logsumexp": "L",
}
_SHADED = {"weights", "dropped"}
_GAP = 3  # between tables side by side
_NARROWEST = 24  # minimum width of a table with its caption: three fit into 80 columns
_CELL = 6  # a number such as 0.25 and a space on either side
_LABEL = 12  # maximum width of a row label, which leaves room for ten numbers in 80 columns
_DIM = Style(dim=True)


def as_text(steps: Steps) -> str:
    """Return the tables of `step_tables` as text, as wide as the terminal.

    If standard output is not a terminal, they are 80 columns wide and have no colours.
    """
    console = Console(highlight=False)
    with console.capture() as capture:
        for renderable in step_tables(steps):
            console.print(renderable)
    return capture.get().rstrip("\n")


def step_tables(
    steps: Steps, tokens: Sequence[str] | None = None, *, whole: bool = False
) -> Iterator[RenderableType]:
    """Render all steps as tables.

    Args:
        steps: from `regard.explain`.
        tokens: one token per position, for self-attention, as labels of queries and keys.
        whole: list steps that do not fit by name only, instead of showing a part.

    Yields:
        Renderables of rich; for empty batches or heads only names and shapes.

    Raises:
        ValueError: unless there is one token for each query and each key.
    """
    if tokens is not None and {len(tokens)} != set(steps.weights.shape[-2:]):
        queries, keys = steps.weights.shape[-2:]
        raise ValueError(f"{len(tokens)} tokens do not label {queries} queries and {keys} keys")
    leading = steps.weights.shape[:-2]
    count = math.prod(leading)
    if count == 0:
        yield Text(repr(steps))
        return
    if count > 1:
        sizes = f" ({' × '.join(map(str, leading))})" if len(leading) > 1 else ""
        first = ", ".join("0" for _ in leading)
        yield Text(f"{count} heads{sizes}; shown: [{first}]", style=_DIM)
    hidden = _first(steps.masked).isneginf()
    yield _Flow([_Matrix.of(step, steps, hidden, tokens) for step in steps], whole)


def label(position: int | str, token: str, width: int) -> str:
    """Return a position, or a range, and its token, at most `width` terminal cells wide."""
    return _cut(f"{position} {visible(token)}", width)


def figure_format(largest: float) -> str:
    """Return the format of a table's numbers: two decimals, more if all are small.

    >>> format(0.3986, figure_format(1.0)), format(0.0123, figure_format(0.02))
    ('0.40', '0.012')
    """
    if largest == 0:
        return ".2f"
    magnitude = math.floor(math.log10(largest))
    if not -5 < magnitude < 4:
        return "z.1e"
    return "z.1f" if magnitude >= 2 else f"z.{1 - min(magnitude, -1)}f"


@dataclass(frozen=True)
class _Fitted:
    """The table of one step, fitted to a width."""

    width: int
    caption: Text
    table: RenderableType
    left_out: Text


@dataclass(frozen=True)
class _Matrix:
    """One step: caption and numbers."""

    caption: Text
    meaning: str
    figures: list[list[float]]  # of the first `ROWS` rows and `COLUMNS` columns
    hidden: list[list[bool]]
    rows: int
    columns: int
    labels: list[str]
    headings: list[str]
    shaded: bool

    @classmethod
    def of(cls, step: Step, steps: Steps, hidden: Tensor, tokens: Sequence[str] | None) -> _Matrix:
        axes = _AXES.get(step.name, "LS")
        tensor = _first(step.tensor, axes=len(axes))
        matrix = tensor[:, None] if len(axes) == 1 else tensor
        rows, columns = matrix.shape
        over_keys = axes == "LS"
        top = matrix[:ROWS, :COLUMNS].double()
        masked = hidden[:ROWS, :COLUMNS] if over_keys else top.isneginf()
        numbers = [str(i) for i in range(columns)]
        return cls(
            caption=_caption(step, axes, steps),
            meaning=step.meaning,
            figures=top.tolist(),
            hidden=masked.tolist(),
            rows=rows,
            columns=columns,
            labels=[
                label(i, tokens[i], _LABEL) if tokens else str(i) for i in range(min(rows, ROWS))
            ],
            headings=[visible(token) for token in tokens[:COLUMNS]]
            if tokens and over_keys
            else ["" if len(axes) == 1 else number for number in numbers[:COLUMNS]],
            shaded=step.name in _SHADED,
        )

    def fit(self, width: int) -> _Fitted:
        """Fit the table into a width in terminal cells."""
        cells = self._cells()
        cell = max((cell_len(text) for row in cells for text in row), default=0) + 1
        cell = max(cell, _CELL) if self.columns > 1 else cell
        names = max((cell_len(name) for name in self.labels), default=0) + 1
        shown = min(len(self.headings), max(1, (width - names) // cell))
        table = Table.grid()
        table.add_column(style=_DIM, no_wrap=True, width=names)
        for _ in range(shown):
            table.add_column(no_wrap=True, width=cell)
        names_above = (_right(_cut(name, cell - 1), cell) for name in self.headings[:shown])
        table.add_row("", *(Text(name, _DIM) for name in names_above))
        for name, texts, row, hidden in zip(
            self.labels, cells, self.figures, self.hidden, strict=True
        ):
            table.add_row(Text(name), *self._styled(texts[:shown], row, hidden, cell))
        empty = not (self.rows and self.columns)
        left_out = _left_out(self.rows - len(self.labels), self.columns - shown)
        return _Fitted(
            width=min(width, max(names + shown * cell, cell_len(self.caption.plain), _NARROWEST)),
            caption=Text.assemble(self.caption, "\n", (self.meaning, _DIM)),
            table=Text("empty", _DIM) if empty else table,
            left_out=Text(left_out, _DIM),
        )

    def _cells(self) -> list[list[str]]:
        finite = [abs(x) for row in self.figures for x in row if math.isfinite(x)]
        pattern = figure_format(max(finite, default=0.0))
        return [
            [
                _figure(x, pattern, exact_zero=self.shaded and hide)
                for x, hide in zip(row, hides, strict=True)
            ]
            for row, hides in zip(self.figures, self.hidden, strict=True)
        ]

    def _styled(
        self, texts: Sequence[str], row: Sequence[float], hidden: Sequence[bool], width: int
    ) -> Iterable[Text]:
        for text, x, hide in zip(texts, row, hidden, strict=False):
            style = _DIM if hide else shade(x) if self.shaded else Style.null()
            yield Text(_right(text, width), style)


@dataclass(frozen=True)
class _Flow:
    """Tables in order, as many side by side as fit."""

    matrices: list[_Matrix]
    whole: bool
    """Whether steps that do not fit are listed by name only."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line: list[_Fitted] = []
        named = shaded = False
        for matrix in self.matrices:
            fitted = matrix.fit(options.max_width)
            if self.whole and fitted.left_out:
                yield from _side_by_side(line)
                line, named = [], True
                yield Text.assemble(matrix.caption, (f"  {matrix.meaning}", _DIM))
                continue
            if named:
                yield Text()
                named = False
            shaded = shaded or matrix.shaded
            if line and _needed([*line, fitted]) > options.max_width:
                yield from _side_by_side(line)
                line = []
            line.append(fitted)
        yield from _side_by_side(line)
        if shaded:
            yield legend()


def _needed(line: Sequence[_Fitted]) -> int:
    return sum(fitted.width for fitted in line) + _GAP * (len(line) - 1)


def _side_by_side(line: Sequence[_Fitted]) -> Iterator[RenderableType]:
    if not line:
        return
    row = Table.grid(padding=(0, _GAP, 0, 0), pad_edge=False)
    for fitted in line:
        row.add_column(width=fitted.width)
    row.add_row(*(fitted.caption for fitted in line))
    row.add_row(*(fitted.table for fitted in line))
    if any(fitted.left_out for fitted in line):
        row.add_row(*(fitted.left_out for fitted in line))
    yield row
    yield Text()


def _first(tensor: Tensor, axes: int = 2) -> Tensor:
    """Return the first head of the first batch entry."""
    return tensor.detach()[(0,) * (tensor.ndim - axes)]


def _caption(step: Step, axes: str, steps: Steps) -> Text:
    leading = step.shape[: len(step.shape) - len(axes)]
    heads = "G" if axes[0] == "S" and steps.key.shape[:-2] != steps.query.shape[:-2] else "H"
    letters = ["B", heads] if len(leading) == 2 else [""] * len(leading)
    letters += ["Dv" if letter == "v" else letter for letter in axes]
    sizes = [f"{a}={n}" if a else str(n) for a, n in zip(letters, step.shape, strict=True)]
    return Text.assemble((step.name, "bold"), " ", (f"({', '.join(sizes)})", _DIM))


def _figure(x: float, pattern: str, *, exact_zero: bool) -> str:
    if exact_zero:
        return "0"
    if math.isinf(x):
        return "∞" if x > 0 else "−∞"
    return "NaN" if math.isnan(x) else format(x, pattern)


def _left_out(rows: int, columns: int) -> str:
    parts = [
        f"{count} more {name}{'s' if count > 1 else ''}"
        for count, name in ((rows, "row"), (columns, "column"))
        if count > 0
    ]
    return f"… {', '.join(parts)}" if parts else ""


def _right(text: str, width: int) -> str:
    """Align right, with a trailing space as the margin of a coloured cell."""
    return f"{' ' * (width - 1 - cell_len(text))}{text} "


def _cut(text: str, width: int) -> str:
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(width - 1, 0)).rstrip() + "…"
