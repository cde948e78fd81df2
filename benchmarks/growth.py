"""Whether time follows the visible area: at any length, within a window, within documents."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from benchmarks.cases import DTYPES, PACKED, WINDOWED, Case, name_of
from benchmarks.report import Report, milliseconds
from regard.cli.timing import interleaved

LENGTHS = tuple(Case(1, 2, 2048 * 2**power, 64) for power in range(6))
AREAS = (Case(1, 12, 8192, 64), WINDOWED, PACKED)
TOLERANCE = 0.2  # short windows and documents touch keys at their edges that they do not show


def growth(
    report: Report, lengths: Sequence[Case] = LENGTHS, areas: Sequence[Case] = AREAS
) -> None:
    """Print the tables; in each, the first row is what the others are measured by."""
    for dtype in DTYPES:
        _table(report, f"growth {name_of(dtype)}", lengths, dtype)
        _table(report, f"visible area {name_of(dtype)}", areas, dtype)


def _table(report: Report, title: str, cases: Sequence[Case], dtype: torch.dtype) -> None:
    report.table(
        f"{title}: the forward's time for each visible entry",
        *(("(B,H,L,D)", 28), ("ms", 9), ("ps an entry", 12), ("by the first", 16)),
    )
    tasks = {str(case): partial(case.ours, *case.tensors(dtype)) for case in cases}
    with torch.no_grad():
        seconds = interleaved(tasks).seconds
    first = seconds[str(cases[0])] / cases[0].visible
    for case in cases:
        taken = seconds[str(case)]
        entry = taken / case.visible
        report.row(
            str(case),
            *(milliseconds(taken), f"{entry * 1e12:.1f}"),
            report.within(str(case), entry / first, TOLERANCE) if case != cases[0] else "",
        )
