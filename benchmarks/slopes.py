"""ALiBi: what slopes cost, beside no slopes and beside torch with them written out.

With slopes, weights of far keys fall below the normal numbers, and scores rise from key to key.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import regard
from benchmarks.cases import DTYPES, Attention, Case, name_of
from benchmarks.report import Report, milliseconds
from benchmarks.training import backward_task, forward_task
from regard.cli.timing import interleaved
from regard.pattern.readout import Readout

CASE = Case(1, 8, 2048, 64)
READOUTS: dict[str, Readout[Any, Any]] = {
    "received": regard.readouts.Received(),
    "entropy": regard.readouts.Entropy(),
    "top 8": regard.readouts.TopK(8),
}
MOST = 2.0  # times as long as without slopes
NO_TARGET = {"top 8"}  # where scores rise, each key is among the strongest when it is met


def slopes(report: Report) -> None:
    """Print the tables."""
    for dtype in DTYPES:
        report.table(
            f"ALiBi {name_of(dtype)}: {CASE}, causal",
            *(("what", 28), ("ms", 9), ("of without", 15), ("torch ms", 9), ("× torch", 15)),
        )
        for name, tasks in _tasks(dtype).items():
            with torch.set_grad_enabled(name == "backward"):
                seconds = interleaved(tasks).seconds
            row = f"ALiBi {name_of(dtype)}, {name}"
            ratio = seconds["with"] / seconds["without"]
            most = None if name in NO_TARGET else MOST
            cells = [milliseconds(seconds["with"]), report.at_most(row, ratio, most)]
            if "torch" in seconds:
                theirs = seconds["torch"]
                cells += [milliseconds(theirs), report.at_least(row, theirs / seconds["with"], 1.0)]
            report.row(name, *cells)


def _tasks(dtype: torch.dtype) -> dict[str, dict[str, Callable[[], object]]]:
    mask = regard.causal()
    ways: dict[str, Attention] = {
        "without": partial(regard.attention, mask=mask),
        "with": partial(regard.attention, mask=mask, alibi=_slopes()),
        "torch": partial(F.scaled_dot_product_attention, attn_mask=_written_out(dtype)),
    }
    tasks: dict[str, dict[str, Callable[[], object]]] = {
        "forward": {name: forward_task(CASE, dtype, way) for name, way in ways.items()},
        "backward": {name: backward_task(CASE, dtype, way) for name, way in ways.items()},
    }
    query, key, _ = CASE.tensors(dtype)
    patterns = {
        "without": regard.Pattern(query, key, mask=mask),
        "with": regard.Pattern(query, key, mask=mask, alibi=_slopes()),
    }
    for name, readout in READOUTS.items():
        tasks[name] = {way: partial(pattern.read, readout) for way, pattern in patterns.items()}
    return tasks


def _slopes() -> Tensor:
    """Those of eight heads ``(H,)`` (Press et al. 2022, arXiv:2108.12409, section 3)."""
    return 0.5 ** torch.arange(1, CASE.heads + 1)


def _written_out(dtype: torch.dtype) -> Tensor:
    """What slopes and mask add to the scores, ``(H, L, L)``."""
    places = torch.arange(CASE.length)
    apart = (places[:, None] - places).abs()
    bias = -_slopes()[:, None, None] * apart
    return bias.masked_fill(places > places[:, None], -torch.inf).to(dtype)
