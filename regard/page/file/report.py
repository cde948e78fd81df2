"""The page in one file that needs no server: a report.

It holds queries, keys, values and log-sum-exps in few bits, and the page recomputes from them what
the server would have answered. Python writes down what can't be recomputed: the
heads' scores, what the model expects next, and how far off the numbers are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.inputs import Problem
from regard.page.file.bundle import embedded, kernels, whole_page
from regard.page.file.packed import Errors, Numbers, pack_layer

__all__ = ["SIZE", "ReportRun", "objection", "report_page", "tokens_within"]

SIZE = 2_590_000
"""Bytes that a report takes at most where that leaves numbers exact enough."""

# How far off a score may typically be, as powers of two: as little as fits into the size, and never
# more than leaves three decimals of a weight true.
_FINEST, _USUAL, _COARSEST = -16, -12, -10.5
_WEIGHT = 5e-4
_SAMPLE = 61
"""Tokens by which the room of a long text is judged before all of it is packed."""
_SURE = 0.9
"""Share of the room that is promised by them: others may take more."""

_STAND_INS = {
    "api.js": "offline/api.js",
    **dict.fromkeys(
        (
            *("changes.js", "cut.js", "matters.js", "passages.js"),
            *("swap.js", "swapped.js", "patched.js"),
        ),
        "offline/unchanged.js",
    ),
}
"""Modules in place of those that need the server."""


@dataclass(frozen=True, kw_only=True)
class ReportRun:
    """What a report holds of a run."""

    description: dict[str, Any]
    """As the server describes it."""
    scores: list[dict[str, Any]]
    """Of the heads of each layer, as the server sends them."""
    layers: list[list[Problem]]
    """The heads of each layer; `objection` has none to them."""
    values: Sequence[Sequence[Tensor]] | None
    """For each layer the values ``(S, Dv)`` of each head, if they are known."""

    def first(self, tokens: int) -> ReportRun:
        """The same of its first tokens alone."""
        few = slice(0, tokens)
        values = self.values and [[one[few] for one in layer] for layer in self.values]
        layers = [[head.crop(few, few) for head in heads] for heads in self.layers]
        return replace(self, layers=layers, values=values)


def objection(problem: Problem) -> str | None:
    """Say why a page can't recompute a head, or None."""
    rows = problem.rows
    if rows.allowed is not None or rows.spans is not None:
        return "has a mask that is not an interval of keys for each query"
    if rows.bias is not None:
        return "adds a bias of its own to each score"
    positions = rows.positions.flatten()
    if not torch.equal(positions, torch.arange(problem.queries, device=positions.device)):
        return "has queries that do not sit at the keys' own places"
    if not all(tensor.isfinite().all() for tensor in (problem.query, problem.key)):
        return "has queries or keys that are not finite numbers"
    return None


def report_page(about: dict[str, Any], runs: Sequence[ReportRun]) -> str:
    """Write the page and its data, as exactly as `SIZE` allows.

    Args:
        about: what it shows, as the server describes it.
        runs: its texts.
    """
    room = SIZE - len(_page(about, [], "").encode())
    packed, text, errors = _pack_into(room, runs)
    return _page({**about, "decimals": _decimals(errors)}, packed, text)


def tokens_within(size: int, about: dict[str, Any], runs: Sequence[ReportRun]) -> int:
    """How long these texts may be for a report of so many bytes, by their first tokens."""
    room = size - len(_page(about, [], "").encode())
    few = [run.first(_SAMPLE) for run in runs]
    _, text, _ = _pack_truly(few, _COARSEST)
    tokens = max(head.queries for run in few for layer in run.layers for head in layer)
    return int(_SURE * room * tokens / len(text))


def _pack_into(room: int, runs: Sequence[ReportRun]) -> tuple[list[dict[str, Any]], str, Errors]:
    """Pack all runs as exactly as so many bytes allow; see `_pack`."""
    packed, text, _ = _pack(runs, _USUAL, compare=False)
    heads = [head for run in runs for layer in run.layers for head in layer]
    logsumexps = 4 * sum(head.queries for head in heads)
    # A step half as large takes a bit more for each number, so the first try predicts the last.
    spare = (room - len(text) - len(embedded(packed)) - logsumexps) * 6.4
    count = 3 * sum(head.query.numel() for head in heads)
    finer = math.floor(4 * spare / max(1, count)) / 4
    exponent = max(_FINEST, min(_COARSEST, _USUAL - finer))
    packed, text, errors = _pack(runs, exponent)
    while len(text) + len(embedded(packed)) > room and exponent < _COARSEST:
        exponent = min(_COARSEST, exponent + 0.25)
        packed, text, errors = _pack(runs, exponent)
    return (packed, text, errors) if errors.weight <= _WEIGHT else _pack_truly(runs, exponent - 1)


def _pack_truly(
    runs: Sequence[ReportRun], exponent: float
) -> tuple[list[dict[str, Any]], str, Errors]:
    """Pack all runs so exactly or, to be true goes before being small, more so; see `_pack`."""
    exponent = max(_FINEST, exponent)
    packed, text, errors = _pack(runs, exponent)
    while errors.weight > _WEIGHT and exponent > _FINEST:
        exponent = max(_FINEST, exponent - 1)
        packed, text, errors = _pack(runs, exponent)
    return packed, text, errors


def _pack(
    runs: Sequence[ReportRun], exponent: float, *, compare: bool = True
) -> tuple[list[dict[str, Any]], str, Errors]:
    """Pack all runs; their descriptions, their numbers as text, and the largest errors."""
    numbers, errors, encoded = Numbers(), Errors(), []
    for run in runs:
        rows: list[dict[str, list[int]] | None] = []
        layers, worst = [], Errors()
        for place, problems in enumerate(run.layers):
            values = None if run.values is None else list(run.values[place])
            kept = list(pack_layer(problems, values, 2.0**exponent, numbers, compare=compare))
            for problem, head in zip(problems, kept, strict=True):
                bounds = _bounds(problem)
                if bounds not in rows:
                    rows.append(bounds)
                head.encoded["rows"] = rows.index(bounds)
                worst |= head.errors
            layers.append([head.encoded for head in kept])
        note = _error_note(worst, values=run.values is not None)
        description = {**run.description, "errors": asdict(worst)}
        description["notes"] = [*run.description["notes"], note]
        encoded.append(
            {"description": description, "scores": run.scores, "layers": layers, "rows": rows}
        )
        errors |= worst
    return encoded, numbers.text(), errors


def _bounds(problem: Problem) -> dict[str, list[int]] | None:
    """Where each query's keys start and stop; None for what is causal."""
    if problem.rows.is_lower_triangular:
        return None
    bounds = (problem.rows.start, problem.rows.stop)
    start, stop = (bound.expand(1, 1, problem.queries).flatten().tolist() for bound in bounds)
    return {"start": start, "stop": stop}


def _error_note(errors: Errors, *, values: bool) -> str:
    kept, sums = "queries and keys", ""
    if values:
        kept, sums = "queries, keys and values", f", of any context {_round_up(errors.context)}"
    return (
        f"recomputed here from {kept} in few bits: the largest error of any weight is "
        f"{_round_up(errors.weight)}, of any score {_round_up(errors.score)}{sums}"
    )


def _round_up(error: float) -> str:
    """Round up to one figure, so that the statement holds.

    >>> _round_up(0.000041), _round_up(0.0), _round_up(0.02)
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
    data = embedded({"about": about, "runs": runs})
    body = (
        f'<script type="application/json" id="report">{data}</script>\n'
        f'{kernels()}<script type="text/plain" id="numbers">{numbers}</script>\n'
    )
    # api.js asks the server; in its place stands what answers from the data.
    return whole_page("report", instead=_STAND_INS, data=body)
