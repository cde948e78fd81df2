"""What a call costs that has next to nothing to compute."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import regard
from benchmarks.cases import DTYPES, name_of
from benchmarks.report import Report
from regard.cli.timing import interleaved


def overhead(report: Report) -> None:
    """Print the table."""
    report.table(
        "call overhead: B = H = 1, L = 16, D = 64, causal",
        *(("what", 28), ("µs", 9), ("torch µs", 9), ("of torch's", 15)),
    )
    for dtype in DTYPES:
        inputs = torch.randn(3, 1, 1, 16, 64, dtype=dtype).unbind()
        _rows(report, name_of(dtype), _forward(*inputs), at_most=1.0)
        _rows(report, name_of(dtype), _forward_and_backward(*inputs), at_most=None)


def _rows(
    report: Report, name: str, tasks: dict[str, Callable[[], object]], at_most: float | None
) -> None:
    seconds = interleaved(tasks).seconds
    theirs = seconds.pop("torch")
    for what, ours in seconds.items():
        row = f"{name}, {what}"
        report.row(
            row,
            *(f"{ours * 1e6:.1f}", f"{theirs * 1e6:.1f}"),
            report.at_most(row, ours / theirs, at_most),
        )


def _forward(query: Tensor, key: Tensor, value: Tensor) -> dict[str, Callable[[], object]]:
    mask = regard.causal()
    return {
        "mask made once": lambda: regard.attention(query, key, value, mask=mask),
        "mask made in the call": lambda: regard.attention(query, key, value, mask=regard.causal()),
        "torch": lambda: F.scaled_dot_product_attention(query, key, value, is_causal=True),
    }


def _forward_and_backward(
    query: Tensor, key: Tensor, value: Tensor
) -> dict[str, Callable[[], object]]:
    query, key, value = inputs = tuple(t.clone().requires_grad_() for t in (query, key, value))
    gradient, mask = torch.ones_like(query), regard.causal()

    def differentiated(context: Tensor) -> object:
        return torch.autograd.grad(context, inputs, gradient)

    def ours() -> object:
        return differentiated(regard.attention(query, key, value, mask=mask))

    def theirs() -> object:
        return differentiated(F.scaled_dot_product_attention(query, key, value, is_causal=True))

    return {"with gradients": ours, "torch": theirs}
