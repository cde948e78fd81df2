"""What a call costs that has next to nothing to compute."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import regard
from benchmarks.cases import DTYPES, name_of
from benchmarks.measure import interleaved
from benchmarks.report import Report


def overhead(report: Report) -> None:
    """Print the table."""
    report.table(
        "call overhead: B = H = 1, L = 16, D = 64, causal",
        *(("what", 28), ("µs", 9), ("torch µs", 9), ("of torch's", 15)),
    )
    for dtype in DTYPES:
        seconds = interleaved(_tasks(*torch.randn(3, 1, 1, 16, 64, dtype=dtype))).seconds
        theirs = seconds.pop("torch")
        for name, ours in seconds.items():
            row = f"{name_of(dtype)}, {name}"
            report.row(
                row,
                *(f"{ours * 1e6:.1f}", f"{theirs * 1e6:.1f}"),
                report.at_most(row, ours / theirs, 1.0),
            )


def _tasks(query: Tensor, key: Tensor, value: Tensor) -> dict[str, Callable[[], object]]:
    mask = regard.causal()
    return {
        "mask made once": lambda: regard.attention(query, key, value, mask=mask),
        "mask made in the call": lambda: regard.attention(query, key, value, mask=regard.causal()),
        "torch": lambda: F.scaled_dot_product_attention(query, key, value, is_causal=True),
    }
