"""The time and the memory of a task on a GPU; on a CPU its time alone, to try things out."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch


def seconds(task: Callable[[], object], at_most: float = 0.5) -> float:
    """Time one call: the median of as many as fit into some seconds, at least 3."""
    for _ in range(2):  # compiles, and warms up
        task()
    once = one(task)
    return statistics.median(one(task) for _ in range(max(3, min(30, int(at_most / once)))))


def one(task: Callable[[], object]) -> float:
    """Time one call, on a GPU by its own events."""
    if not torch.cuda.is_available():
        started = time.perf_counter()
        task()
        return time.perf_counter() - started
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    task()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / 1e3


def extra_mib(task: Callable[[], object]) -> float | None:
    """Measure the memory that a task takes beyond what is there, on a GPU, in MiB."""
    if not torch.cuda.is_available():
        task()
        return None
    task()  # what is allocated once
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    task()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def finish() -> None:
    """Wait for all that a GPU was given to do."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
