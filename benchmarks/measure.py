"""How anything is measured here: interleaved, medians, with the machine's own limit beside it."""

from __future__ import annotations

import math
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

_ENOUGH = 0.02  # seconds of a task in a round: what is quicker is called many times
_SECONDS = 5.0  # of all rounds, where between the fewest and the most of them take that long
_FEWEST, _MOST = 3, 15


@dataclass(frozen=True)
class Measured:
    """Medians over the rounds."""

    seconds: dict[str, float]
    """Of one call of each task."""
    limit: float
    """What the machine can do at most, measured in the same rounds."""


def interleaved(
    tasks: Mapping[str, Callable[[], object]],
    limit: Callable[[], float] | None = None,
    *,
    seconds_of_rounds: float = _SECONDS,
) -> Measured:
    """Run the tasks in turn, round after round.

    Interleaving lets whatever slows the machine down for a while slow all of them down. Two calls
    of each come before and are not counted: the first compiles and warms up, the second gives the
    number of calls that fill a round.

    Args:
        tasks: what to time, by name.
        limit: measures what the machine can do, once a round.
        seconds_of_rounds: how long all of them take, between the fewest and the most.
    """
    for task in tasks.values():
        task()
    once = {name: _seconds(task, 1) for name, task in tasks.items()}
    calls = {name: math.ceil(_ENOUGH / max(taken, 1e-7)) for name, taken in once.items()}
    round_takes = sum(max(_ENOUGH, taken) for taken in once.values())
    rounds = max(_FEWEST, min(_MOST, int(seconds_of_rounds / round_takes)))
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    limits: list[float] = []
    for _ in range(rounds):
        for name, task in tasks.items():
            if calls[name] > 1:
                task()  # wakes the threads, which the task before may have left asleep
            seconds[name].append(_seconds(task, calls[name]))
        if limit is not None:
            limits.append(limit())
    return Measured(
        {name: statistics.median(times) for name, times in seconds.items()},
        statistics.median(limits) if limits else math.nan,
    )


def _seconds(task: Callable[[], object], calls: int) -> float:
    """The time of one call, as the mean of several."""
    start = time.perf_counter()
    for _ in range(calls):
        task()
    return (time.perf_counter() - start) / calls


def extra_memory(module: str, *arguments: str) -> int:
    """Run a module in a process of its own and read the bytes it prints last."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], check=True, capture_output=True, text=True
    )
    return int(done.stdout.split()[-1])


def high_water() -> int:
    """Most memory this process has held so far, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # where getrusage may give the parent's
        match = re.search(r"^VmHWM:\s*(\d+) kB$", status.read_text(), flags=re.MULTILINE)
        assert match is not None, "Linux has this line"
        return 1024 * int(match[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
