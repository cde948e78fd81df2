"""Dropout: what drawing the dropped weights costs, beside attention without it and torch's."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F

import regard
from benchmarks.cases import CASES, Attention
from benchmarks.report import Report, milliseconds
from benchmarks.training import backward_task, forward_task
from regard.cli.timing import interleaved

DROPOUT = 0.1
MOST_TOKENS = 1024  # of a text: torch stores the weights


def dropout(report: Report) -> None:
    """Print the tables of the forward and the backward pass."""
    ways: dict[str, Attention] = {
        "without": partial(regard.attention, mask=regard.causal()),
        "ours": partial(regard.attention, mask=regard.causal(), dropout=DROPOUT),
        "torch": partial(F.scaled_dot_product_attention, is_causal=True, dropout_p=DROPOUT),
    }
    for name, task in {"forward": forward_task, "backward": backward_task}.items():
        report.table(
            f"{name} float32 with dropout {DROPOUT}: causal",
            *(("(B,H,L,D)", 28), ("ms", 9), ("of without", 11)),
            *(("torch ms", 9), ("× torch", 15)),
        )
        for case in (case for case in CASES if case.length <= MOST_TOKENS):
            with torch.set_grad_enabled(task is backward_task):
                tasks = {way: task(case, torch.float32, ways[way]) for way in ways}
                seconds = interleaved(tasks).seconds
            report.row(
                str(case),
                milliseconds(seconds["ours"]),
                f"{seconds['ours'] / seconds['without']:.2f}",
                milliseconds(seconds["torch"]),
                report.at_least(str(case), seconds["torch"] / seconds["ours"], 1.0),
            )
