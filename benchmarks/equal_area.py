"""What edges cost: a window and documents beside causal attention of as many visible entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from benchmarks.cases import DTYPES, PACKED, WINDOWED, Case, name_of
from benchmarks.report import Report, milliseconds
from benchmarks.training import backward_operations, backward_task, forward_task
from regard.backends.native.peak import peak_flops
from regard.cli.timing import interleaved

LEAST = 0.95  # of the share that causal attention has of the processor's peak


def equal_area(report: Report, cases: Sequence[Case] = (WINDOWED, PACKED)) -> None:
    """Print the tables."""
    for dtype in DTYPES:
        with torch.no_grad():
            tasks = {case: forward_task(case, dtype, case.ours) for case in _with_causal(cases)}
            _table(report, "forward", dtype, cases, tasks, lambda case: case.operations)
        tasks = {case: backward_task(case, dtype, case.ours) for case in _with_causal(cases)}
        _table(report, "backward", dtype, cases, tasks, backward_operations)


def _with_causal(cases: Sequence[Case]) -> list[Case]:
    return [one for case in cases for one in (case, case.of_equal_area)]


def _table(
    report: Report,
    title: str,
    dtype: torch.dtype,
    cases: Sequence[Case],
    tasks: dict[Case, Callable[[], object]],
    operations: Callable[[Case], int],
) -> None:
    report.table(
        f"equal area {title} {name_of(dtype)}: beside causal attention of as many visible entries",
        *(("(B,H,L,D)", 28), ("ms", 9), ("of peak", 7)),
        *(("causal", 16), ("ms", 9), ("of peak", 7), ("of its share", 17)),
    )
    named = {str(case): task for case, task in tasks.items()}
    measured = interleaved(named, partial(peak_flops, dtype))
    for case in cases:
        cells: list[str] = []
        shares: list[float] = []
        for one in (case, case.of_equal_area):
            seconds = measured.seconds[str(one)]
            shares.append(operations(one) / seconds / measured.limit)
            cells += [str(one), milliseconds(seconds), f"{shares[-1]:.1%}"]
        ratio = shares[0] / shares[1]
        report.row(*cells, report.at_least(str(case), ratio, LEAST, ".3f"))
