"""The first second: a help, an error about an argument, an explanation, and what an import adds.

Every number is of a process that ends; those of a row's peer ran in the same rounds.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from benchmarks.report import Report
from regard.cli.timing import interleaved

TEXT = "Tom had a red kite and a blue drum. Tom wanted the blue"
# A command of one option, made with the library that ours is made with, which reads its value.
CLICK = "import click; main = click.command()(click.option('--text')(lambda text: None))"
PEERS = {
    "python": ["-c", "pass"],
    "a command of click": ["-c", f"{CLICK}; main(['--text', 'x'])"],
    "import torch": ["-c", "import torch"],
}


class _Row(NamedTuple):
    arguments: list[str]
    peer: str
    most: float
    """Seconds that it may take."""


ROWS = {
    "regard --help": _Row(["-m", "regard", "--help"], "a command of click", 0.15),
    "an option that is not there": _Row(
        ["-m", "regard", "explain", "--nonsense"], "a command of click", 0.2
    ),
    "a view that is not there": _Row(
        ["-m", "regard", "explain", "--view", "x", "y"], "a command of click", 0.2
    ),
    "a model that is not there": _Row(
        ["-m", "regard", "explain", "--model", "runs/mien", "x"], "a command of click", 0.2
    ),
    "regard explain, the small model": _Row(["-m", "regard", "explain", TEXT], "import torch", 2.5),
}
ADDING = {
    "import regard": "import regard",
    "import regard and attention": "from regard import attention, causal",
}
ADDED = 0.1  # seconds to torch's own import
TIMED = """
import time
start = time.perf_counter()
import torch
middle = time.perf_counter()
{program}
print(time.perf_counter() - middle, middle - start)
"""
ROUNDS = 7


def starting(report: Report) -> None:
    """Print the table."""
    commands = PEERS | {name: row.arguments for name, row in ROWS.items()}
    tasks: dict[str, Callable[[], object]] = {
        name: partial(_ended, arguments) for name, arguments in commands.items()
    }
    seconds = interleaved(tasks, seconds_of_rounds=60).seconds
    report.table(
        "the first second: a process from its start to its end",
        *(("what", 32), ("s", 18), ("peer", 18), ("peer's s", 9), ("of peer's", 9)),
    )
    for name, row in ROWS.items():
        theirs = seconds[row.peer]
        report.row(
            name,
            report.at_most(name, seconds[name], row.most, ".3f"),
            *(row.peer, f"{theirs:.3f}", f"{seconds[name] / theirs:.2f}"),
        )
    for name, program in ADDING.items():
        added, theirs = (statistics.median(column) for column in zip(*_added(program), strict=True))
        report.row(
            f"{name}, after torch",
            report.at_most(name, added, ADDED, ".3f"),
            *("import torch", f"{theirs:.3f}", f"{added / theirs:.2f}"),
        )
    report.row("python", f"{seconds['python']:.3f}")


def _added(program: str) -> Iterator[tuple[float, float]]:
    """What a program takes after torch's import, and that import, in several processes."""
    for _ in range(ROUNDS):
        timed = TIMED.format(program=program)
        done = subprocess.run([sys.executable, "-c", timed], capture_output=True, check=True)
        added, theirs = map(float, done.stdout.split())
        yield added, theirs


def _ended(arguments: list[str]) -> None:
    subprocess.run([sys.executable, *arguments], capture_output=True, check=False)
