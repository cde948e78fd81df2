"""What a monitor costs in training: an update as it is, one that is read, and one that is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

import regard
from benchmarks.arguments import take_none
from benchmarks.gpt_training import Setting, batches, ours
from benchmarks.report import Report, milliseconds
from regard.cli.timing import interleaved

EVERY = 100
MOST = 1_000_000  # updates that a measurement may make
SETTINGS = (
    Setting("small", 4, 4, 128, 64, 12, MOST),
    Setting("large", 6, 6, 384, 256, 12, MOST),
    Setting("long", 2, 4, 128, 1024, 2, MOST),
)


def monitor(report: Report, settings: Sequence[Setting] = SETTINGS) -> None:
    """Print the table; the cost is that of the updates that are read, and of the others."""
    report.table(
        f"monitor: largest score, entropy and share on the first token, every {EVERY} updates",
        *(("layers × heads, batch", 28), ("update, ms", 10), ("read, ms", 9)),
        *(("not read, µs", 12), ("cost", 18)),
    )
    for setting in settings:
        shape = f"{setting.layers} × {setting.heads}, {setting.batch} × {setting.context}"
        seconds = interleaved(_tasks(setting)).seconds
        plain = seconds["plain"]
        cost = ((seconds["read"] - plain) / EVERY + seconds["not read"]) / plain
        report.row(
            f"{setting.name}: {shape}",
            milliseconds(plain),
            milliseconds(seconds["read"]),
            f"{seconds['not read'] * 1e6:.1f}",
            report.at_most(setting.name, cost, 0.01, ".2%"),
        )


def _tasks(setting: Setting) -> dict[str, Callable[[], object]]:
    ((ids, targets),) = batches(replace(setting, steps=1))  # of which every update is made
    step = ours(setting, torch.device("cpu"), compiled=False)
    always, never = regard.Monitor(every=1), regard.Monitor(every=MOST)
    with never.update():  # number 0, which is read
        step(ids, targets)

    def plain() -> None:
        step(ids, targets)

    def read() -> None:
        with always.update():
            step(ids, targets)

    def not_read() -> None:
        with never.update():
            pass

    return {"plain": plain, "read": read, "not read": not_read}


if __name__ == "__main__":
    take_none("benchmarks.monitor", "Measure what a monitor costs in training.")
    monitor(Report())
