"""The explorer's page in one file that needs no server: a report.

It holds queries, keys, values and log-sum-exps in few bits, and the page recomputes from them what
the server would have answered. Python writes down what can't be recomputed: the
heads' scores, what the model expects next, and how far off the numbers are.
"""

from __future__ import annotations

import html
import math
import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from regard._files import replace_file
from regard.explorer.subjects import ExplorerError, RecordingSubject
from regard.page.bundle import embedded, policy, script, static
from regard.page.packed import Errors, Numbers, pack_layer
from regard.problem import Problem
from regard.record import Recording

if TYPE_CHECKING:
    from regard.explorer._run import Run
    from regard.explorer.subjects import Subject

__all__ = ["LARGEST", "report", "report_html"]

SIZE = 1_990_000
"""Bytes that a report takes at most where that leaves numbers exact enough."""
LARGEST = 32_000_000
"""Bytes of the largest report that is written."""
WEIGHTS = 2**27
"""Most weights that a report stands for: a browser computes them all for the pictures of heads."""

# How far off a score may typically be, as powers of two: as little as fits into the size, and never
# more than leaves three decimals of a weight true.
_FINEST, _USUAL, _COARSEST = -16, -12, -11
_WEIGHT = 5e-4

_STYLES = ("page.css", "panels.css")
_LINKED = re.compile(
    r'^(?:<link rel="stylesheet".*|<script type="module".*|<!--.*-->)\n',
    re.MULTILINE,
)


def report(
    shown: Recording | Subject,
    path: str | os.PathLike[str],
    *,
    title: str = "recording",
    start: str = "",
) -> int:
    """Write the explorer's page as one HTML file that opens offline, without a server.

    The file holds queries, keys and log-sum-exps, kept in few bits, and values where they are
    known; the page recomputes every weight from them and says how far off it may be.

    Args:
        shown: a recording, or what the explorer shows.
        path: the file; one that is there is replaced.
        title: what the page calls a recording.
        start: what the page opens with, as the address of an explorer's page says it after ``#``.

    Returns:
        The bytes written.

    Raises:
        ExplorerError: for masks and biases that are no intervals, numbers that are none, and what
            is too long for a file.
        OSError: if the file can't be written, or is a folder, a pipe or the like.
    """
    subject = RecordingSubject(shown, title=title) if isinstance(shown, Recording) else shown
    target = Path(path)
    if target.exists() and not target.is_file():  # such as /dev/stdout, which no file must replace
        raise FileExistsError(f"{path} exists and is no regular file")
    data = report_html(subject, start=start).encode()
    replace_file(target, data)
    return len(data)


def report_html(subject: Subject, *, start: str = "") -> str:
    """Make the report's HTML; see `report`."""
    runs = [subject.run(name) for name in subject.about()["runs"]]
    problems = [_problems(run) for run in runs]
    _require_writable([head for run in problems for layer in run for head in layer])
    sources = [_Source(run, layers) for run, layers in zip(runs, problems, strict=True)]
    about = {**subject.about(), "writes": False, "generates": False, "example": None}
    about |= {"report": True, "start": start}
    about.pop("training", None)  # it is the server's to tell
    room = SIZE - len(_page(about, [], "").encode())
    packed, text, errors = _fitting(sources, room)
    about["decimals"] = _decimals(errors)
    page = _page(about, packed, text)
    size = len(page.encode())
    if size > LARGEST:
        length = max(len(run.tokens) for run in runs)
        most = int(length * LARGEST / size)
        raise ExplorerError(
            f"a report of these {length} tokens would take {size / 1e6:.0f} MB, and at most "
            f"{LARGEST / 1e6:.0f} MB are written: give about {most} tokens, or use regard explore"
        )
    return page


class _Source:
    """A run as a report needs it: its heads, checked, and what Python alone tells of it."""

    def __init__(self, run: Run, layers: list[list[Problem]]) -> None:
        self.layers = layers
        self.heads = [head for layer in layers for head in layer]
        self.values = run.values
        self.described = run.described()
        self.scores = [run.scores(place) for place in range(len(layers))]


def _fitting(sources: list[_Source], room: int) -> tuple[list[dict[str, Any]], str, Errors]:
    """Keep all runs as exactly as so many bytes allow; see `_pack`."""
    packed, text, _ = _pack(sources, _USUAL, compare=False)
    heads = [head for source in sources for head in source.heads]
    logsumexps = 4 * sum(head.queries for head in heads)
    # A step half as large takes a bit more for each number, so the first try tells the last.
    spare = (room - len(text) - len(embedded(packed)) - logsumexps) * 6.4
    count = 3 * sum(head.query.numel() for head in heads)
    finer = math.floor(4 * spare / max(1, count)) / 4
    exponent = max(_FINEST, min(_COARSEST, _USUAL - finer))
    packed, text, errors = _pack(sources, exponent)
    while len(text) + len(embedded(packed)) > room and exponent < _COARSEST:
        exponent = min(_COARSEST, exponent + 0.25)
        packed, text, errors = _pack(sources, exponent)
    while errors.weight > _WEIGHT and exponent > _FINEST:  # to be true goes before being small
        exponent = max(_FINEST, exponent - 1)
        packed, text, errors = _pack(sources, exponent)
    return packed, text, errors


def _problems(run: Run) -> list[list[Problem]]:
    """The heads of each layer, checked: what a page can recompute."""
    layers = []
    for place, layer in enumerate(run.layers):
        heads = [run.head(place, head).problem for head in range(len(layer.heads))]
        for problem in heads:
            why = _unfit(problem)
            if why:
                raise ExplorerError(
                    f"{layer.name or f'layer {layer.index}'} {why}, which a report can't "
                    "recompute; use regard explore"
                )
        layers.append(heads)
    return layers


def _unfit(problem: Problem) -> str:
    rows = problem.rows
    if rows.allowed is not None:
        return "has a mask that is no interval of keys for each query"
    if rows.bias is not None:
        return "adds a bias of its own to each score"
    positions = rows.positions.flatten()
    if not torch.equal(positions, torch.arange(problem.queries, device=positions.device)):
        return "has queries that do not sit at the keys' own places"
    if not all(tensor.isfinite().all() for tensor in (problem.query, problem.key)):
        return "has queries or keys that are no finite numbers"
    return ""


def _require_writable(heads: list[Problem]) -> None:
    count = sum(head.queries * head.keys for head in heads)
    if count > WEIGHTS:
        length = heads[0].queries
        most = int(length * (WEIGHTS / count) ** 0.5)
        raise ExplorerError(
            f"a report stands for at most {WEIGHTS:,} weights, and these {len(heads)} heads on "
            f"{length} tokens have {count:,}: give at most {most} tokens, or use regard explore"
        )


def _pack(
    sources: list[_Source], exponent: float, *, compare: bool = True
) -> tuple[list[dict[str, Any]], str, Errors]:
    """Keep all runs; their descriptions, their numbers as text, and the largest errors."""
    numbers, errors, encoded = Numbers(), Errors(), []
    for source in sources:
        rows: list[dict[str, list[int]] | None] = []
        layers, worst = [], Errors()
        for place, problems in enumerate(source.layers):
            values = None if source.values is None else list(source.values[place])
            kept = list(pack_layer(problems, values, 2.0**exponent, numbers, compare=compare))
            for problem, head in zip(problems, kept, strict=True):
                head.encoded["rows"] = _place(rows, _rows(problem))
                worst |= head.errors
            layers.append([head.encoded for head in kept])
        note = _error_note(worst, values=source.values is not None)
        described = {**source.described, "errors": asdict(worst)}
        described["notes"] = [*source.described["notes"], note]
        encoded.append(
            {"described": described, "scores": source.scores, "layers": layers, "rows": rows}
        )
        errors |= worst
    return encoded, numbers.text(), errors


def _rows(problem: Problem) -> dict[str, list[int]] | None:
    """Where each query's keys start and stop; None for what is causal."""
    if problem.rows.causal_from_zero:
        return None
    bounds = (problem.rows.start, problem.rows.stop)
    start, stop = (bound.expand(1, 1, problem.queries).flatten().tolist() for bound in bounds)
    return {"start": start, "stop": stop}


def _place(entries: list[Any], entry: Any) -> int:
    """Put something at the end of a list unless it is there; where it is."""
    if entry not in entries:
        entries.append(entry)
    return entries.index(entry)


def _error_note(errors: Errors, *, values: bool) -> str:
    kept, sums = "queries and keys", ""
    if values:
        kept, sums = "queries, keys and values", f", of any context {_few(errors.context)}"
    return (
        f"recomputed here from {kept} in few bits: the largest error of any weight is "
        f"{_few(errors.weight)}, of any score {_few(errors.score)}{sums}"
    )


def _few(error: float) -> str:
    """Round up to one figure, so that the statement holds.

    >>> _few(0.000041), _few(0.0), _few(0.02)
    ('0.00005', '0', '0.02')
    """
    if error == 0:
        return "0"
    unit = 10.0 ** math.floor(math.log10(error))
    places = max(0, -math.floor(math.log10(unit)))
    rounded = math.ceil(error / unit * (1 - 1e-9)) * unit
    return f"{rounded:.{places}f}"


def _decimals(errors: Errors) -> int:
    """How many decimals numbers but weights are shown with: an error is below one of the last."""
    worst = max(errors.product, errors.score, errors.vector, errors.context, 1e-9)
    return max(0, math.floor(-math.log10(worst)))


def _page(about: dict[str, Any], runs: list[dict[str, Any]], numbers: str) -> str:
    style = "".join(static(name) for name in _STYLES)
    # api.js asks the server; in its place stands what answers from the data below.
    code = script("main.js", instead={"api.js": "offline/api.js"})
    meta = html.escape(policy([style], [code]))
    head = f'<meta http-equiv="Content-Security-Policy" content="{meta}">\n<style>{style}</style>\n'
    data = embedded({"about": about, "runs": runs})
    body = (
        f'<script type="application/json" id="report">{data}</script>\n'
        f'<script type="text/plain" id="numbers">{numbers}</script>\n'
        f'<script type="module">{code}</script>\n'
    )
    page = _LINKED.sub("", static("index.html"))
    page = page.replace("<body>", '<body class="report">')
    page = page.replace('<meta charset="utf-8">\n', f'<meta charset="utf-8">\n{head}')
    return page.replace("</body>", f"{body}</body>")
