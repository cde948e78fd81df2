"""Times of tasks, taken in turn: medians, and ratios of times of the same round."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

_ENOUGH = 0.02  # seconds of a task in a round: what is quicker is called many times
_SECONDS = 5.0  # of all rounds, where between the fewest and the most of them take that long
_FEWEST, _MOST = 3, 15


class Ratio(NamedTuple):
    """One task's time over another's: the median of all rounds, and between what half of them lie.

    Example:
        >>> Measured({"one": [1.0, 2.0, 3.0], "other": [2.0, 8.0, 9.0]}).ratio("other", "one")
        Ratio(median=3.0, low=2.5, high=3.5)
    """

    median: float
    low: float
    """The lower quartile."""
    high: float
    """The upper quartile."""


@dataclass(frozen=True)
class Measured:
    """What the rounds took.

    Example:
        >>> Measured({"one": [1.0, 5.0, 2.0]}).seconds
        {'one': 2.0}
    """

    rounds: Mapping[str, list[float]]
    """Seconds of one call of each task, round by round."""
    limit: float = math.nan
    """What the machine can do at most, the median of the same rounds."""

    @property
    def seconds(self) -> dict[str, float]:
        """Medians over the rounds."""
        return {name: statistics.median(times) for name, times in self.rounds.items()}

    def ratio(self, one: str, other: str) -> Ratio:
        """Return one task's time over another's in each round, by median and quartiles."""
        pairs = zip(self.rounds[one], self.rounds[other], strict=True)
        ratios = [taken / of_other for taken, of_other in pairs]
        low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
        return Ratio(median, low, high)


def interleaved(
    tasks: Mapping[str, Callable[[], object]],
    limit: Callable[[], float] | None = None,
    *,
    seconds_of_rounds: float = _SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> Measured:
    """Run the tasks in turn, round after round.

    Interleaving lets whatever slows the machine down for a while slow all of them down. Two calls
    of each come before and are not counted: the first compiles and warms up, the second gives the
    number of calls that fill a round.

    Args:
        tasks: what to time, by name.
        limit: measures what the machine can do, once a round.
        seconds_of_rounds: how long all of them take, between the fewest and the most.
        clock: in seconds; `time.process_time` leaves out what other processes take.

    Example:
        >>> measured = interleaved({"sum": lambda: sum(range(9))}, seconds_of_rounds=0.1)
        >>> measured.seconds["sum"] > 0
        True
    """
    for task in tasks.values():
        task()
    once = {name: _seconds(task, 1, clock) for name, task in tasks.items()}
    calls = {name: math.ceil(_ENOUGH / max(taken, 1e-7)) for name, taken in once.items()}
    round_takes = sum(max(_ENOUGH, taken) for taken in once.values())
    rounds = max(_FEWEST, min(_MOST, int(seconds_of_rounds / round_takes)))
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    limits: list[float] = []
    for _ in range(rounds):
        for name, task in tasks.items():
            if calls[name] > 1:
                task()  # wakes the threads, which the task before may have left asleep
            seconds[name].append(_seconds(task, calls[name], clock))
        if limit is not None:
            limits.append(limit())
    return Measured(seconds, statistics.median(limits) if limits else math.nan)


def _seconds(task: Callable[[], object], calls: int, clock: Callable[[], float]) -> float:
    """The time of one call, as the mean of several."""
    start = clock()
    for _ in range(calls):
        task()
    return (clock() - start) / calls
