"""The cost of spans of keys that are hidden or shifted amid what a row sees.

``python -m benchmarks.spans LENGTH NAME`` prints the extra bytes that one of them takes.
"""

from __future__ import annotations

from functools import partial

import torch

import regard
from benchmarks.arguments import take
from benchmarks.cases import DTYPES, Case, name_of
from benchmarks.measure import extra_memory, high_water
from benchmarks.report import Report, milliseconds
from regard.cli.timing import interleaved
from regard.masks.hiding import add_to_scores

LONG = Case(1, 12, 16384, 64)
SLOWER, MEMORY = 1.15, 64  # at most: times the call without, MiB more than it


def spans(report: Report, case: Case = LONG) -> None:
    """Print the tables."""
    for dtype in DTYPES:
        report.table(
            f"spans {name_of(dtype)} {case}: forward, causal",
            *(("what", 30), ("ms", 9), ("of that without", 16), ("MiB", 16)),
        )
        tensors = case.tensors(dtype)
        tasks = {
            name: partial(regard.attention, *tensors, mask=mask)
            for name, mask in _masks(case.length).items()
        }
        with torch.no_grad():
            seconds = interleaved(tasks).seconds
        plain = seconds.pop("without")
        report.row("without", milliseconds(plain))
        for name, taken in seconds.items():
            memory = extra_memory("benchmarks.spans", str(case.length), name) / 2**20
            report.row(
                name,
                milliseconds(taken),
                report.at_most(name, taken / plain, SLOWER),
                report.at_most(f"{name}, memory", memory, MEMORY, ".0f"),
            )


def _masks(length: int) -> dict[str, regard.Mask]:
    """Causal masks with a span of an eighth of the keys in the middle."""
    keys = slice(length // 4, length // 4 + length // 8)
    late = slice(length // 2, length // 2 + length // 4)
    spans = {
        "without": regard.Mask(),
        "hidden from some queries": regard.masks.hide(keys, late),
        "hidden from all": regard.masks.hide(keys),
        "hidden from some heads": regard.masks.hide(keys, heads=slice(None, None, 2)),
        "shifted for some queries": add_to_scores(0.7, keys, late),
        "16 keys apart hidden": regard.masks.hide(slice(keys.start, keys.stop, length // 128)),
    }
    return {name: regard.causal() & mask for name, mask in spans.items()}


def _print_extra_memory(length: int, name: str) -> None:
    masks = _masks(length)
    with torch.no_grad():
        tensors = torch.randn(3, LONG.heads, length, LONG.dim).unbind()
        regard.attention(*tensors, mask=masks["without"])
        before = high_water()
        regard.attention(*tensors, mask=masks[name])
    print(high_water() - before)


if __name__ == "__main__":
    about = "Print the extra bytes that spans of keys, hidden or shifted, take."
    names = _masks(LONG.length)
    _print_extra_memory(*take("benchmarks.spans", about, length=int, name=names))
