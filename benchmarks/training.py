"""Forward and backward at every shape, beside torch's SDPA and beside the processor's peak."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from benchmarks.cases import CASES, DTYPES, Attention, Case, name_of
from benchmarks.report import Report, milliseconds
from regard.backends.native.peak import peak_flops
from regard.cli.timing import interleaved

# Shares of the peak for long texts, some 5 % below the smallest that was measured at any shape.
# How many times faster than torch that makes it depends on torch, whose own share is 22 % on one
# processor and 56 % on another: that ratio is printed, and must not be below 1.
LONG = 2048
FORWARD = {torch.float32: 0.70, torch.bfloat16: 0.60}
BACKWARD = {torch.float32: 0.65, torch.bfloat16: 0.55}


def forward(report: Report, cases: Sequence[Case] = CASES) -> None:
    """Print the tables of the forward pass."""
    for dtype in DTYPES:
        _table(report, f"forward {name_of(dtype)}")
        for case in cases:
            with torch.no_grad():
                _row(report, case, dtype, FORWARD[dtype], case.operations, forward_task)


def backward(report: Report, cases: Sequence[Case] = CASES) -> None:
    """Print the tables of the backward pass: five products to the forward's two."""
    for dtype in DTYPES:
        _table(report, f"backward {name_of(dtype)}")
        for case in cases:
            operations = backward_operations(case)
            _row(report, case, dtype, BACKWARD[dtype], operations, backward_task)


def _table(report: Report, title: str) -> None:
    report.table(
        f"{title}: causal, outputs allocated inside",
        *(("(B,H,L,D)", 28), ("ms", 9), ("GFLOP/s", 8), ("of peak", 15)),
        *(("torch ms", 9), ("× torch", 15), ("torch computes by", 18)),
    )


def _row(
    report: Report,
    case: Case,
    dtype: torch.dtype,
    least: float,
    operations: int,
    task: Callable[[Case, torch.dtype, Attention], Callable[[], object]],
) -> None:
    ways = case.by_torch(dtype)
    tasks = {name: task(case, dtype, way) for name, way in ways.items()}
    tasks["ours"] = task(case, dtype, case.ours)
    measured = interleaved(tasks, partial(peak_flops, dtype))
    seconds = measured.seconds
    ours = seconds.pop("ours")
    fastest = min(seconds, key=seconds.__getitem__)
    theirs = seconds[fastest]
    share = operations / ours / measured.limit
    report.row(
        str(case),
        *(milliseconds(ours), f"{operations / ours / 1e9:.0f}"),
        report.at_least(str(case), share, least if case.length >= LONG else None, ".0%"),
        milliseconds(theirs),
        report.at_least(str(case), theirs / ours, 1.0),
        fastest,
    )


def forward_task(case: Case, dtype: torch.dtype, attend: Attention) -> Callable[[], object]:
    """Call it with tensors of its own."""
    return partial(attend, *case.tensors(dtype))


def backward_operations(case: Case) -> int:
    """Of five products."""
    return case.operations * 5 // 2


def backward_task(case: Case, dtype: torch.dtype, attend: Attention) -> Callable[[], object]:
    """Compute the gradients of query, key and value; the forward is not part of the task."""
    inputs = [tensor.requires_grad_() for tensor in case.tensors(dtype)]
    context = attend(*inputs)
    gradient = torch.randn_like(context)
    return partial(torch.autograd.grad, context, inputs, gradient, retain_graph=True)
