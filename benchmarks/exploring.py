"""How long the explorer takes to answer: maps, windows of them, the grid of heads.

Every number is of a request to a server that runs as `regard explore` runs it.
"""

from __future__ import annotations

import statistics
import threading
import time
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

import regard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx

    from benchmarks.report import Report
    from regard.record import Recording

PIXELS = 800
LONG, USUAL, DIM = 65_536, 4096, 64
GRID_LENGTH, GRID = 2048, 12
ROUNDS = 7


def exploring(report: Report) -> None:
    """Print the table."""
    if find_spec("fastapi") is None or find_spec("httpx") is None:
        print("\nexploring: fastapi or httpx is not installed")
        return
    title = f"exploring: what the page waits for, at {PIXELS} × {PIXELS} pixels"
    report.table(title, ("request", 46), ("ms", 30))
    with _served(_recorded(USUAL, heads=1, layers=1)) as client:
        _get(client, USUAL, (0, USUAL))  # its log-sum-exps are known from now on
        for name, part in (("whole", 1.0), ("quarter", 0.5), ("a twentieth", 0.05)):
            taken = _median(partial(_get, client, USUAL, _window(USUAL, part)))
            _row(report, f"map at {USUAL}, {name} of the pattern", taken, 0.1)
    with _served(_recorded(LONG, heads=1, layers=1)) as client:
        first = _seconds(lambda: _get(client, LONG, (0, LONG)))
        _row(report, f"map at {LONG}, whole, first time", first, 2.0)
        taken = _median(lambda: _get(client, LONG, _window(LONG, 0.5)))
        _row(report, f"map at {LONG}, a quarter", taken, 0.3)
        _row(report, "health while that is computed", _health_meanwhile(client), 0.05)
    with _served(_recorded(GRID_LENGTH, heads=GRID, layers=GRID)) as client:
        taken = _seconds(partial(_thumbnails, client))
        _row(report, f"{GRID} × {GRID} thumbnails at {GRID_LENGTH}", taken, 3.0)


def _row(report: Report, name: str, seconds: float, target: float) -> None:
    report.row(name, report.at_most(name, seconds * 1e3, target * 1e3, ".1f"))


def _recorded(length: int, *, heads: int, layers: int) -> Recording:
    query, key = torch.randn(2, 1, heads, length, DIM).unbind()
    with regard.record() as recording:
        for _ in range(layers):
            regard.attention(query, key, key, mask=regard.causal())
    return recording


@contextmanager
def _served(recording: Recording) -> Iterator[httpx.Client]:
    import httpx

    from regard.explorer import explore

    explorer = explore(recording)
    with httpx.Client(base_url=explorer.url, timeout=60) as client:
        while True:
            try:
                client.get("api/health")
                break
            except httpx.ConnectError:
                time.sleep(0.05)
        yield client
    explorer.stop()


def _window(length: int, part: float) -> tuple[int, int]:
    """A square at the diagonal, below which all is hidden in half."""
    size = int(length * part)
    return (length - size) // 2, (length + size) // 2


def _get(client: httpx.Client, length: int, window: tuple[int, int]) -> None:
    span = f"{window[0]},{window[1]}"
    options = f"queries={span}&keys={span}&rows={PIXELS}&columns={PIXELS}"
    client.get(f"api/runs/0/map?layer=0&head=0&{options}").raise_for_status()
    assert window[1] <= length


def _thumbnails(client: httpx.Client) -> None:
    for layer in range(GRID):
        client.get(f"api/runs/0/thumbnails?layer={layer}&size=64").raise_for_status()


def _health_meanwhile(client: httpx.Client) -> float:
    """The slowest of the answers that come while a map is computed."""
    worker = threading.Thread(target=_get, args=(client, LONG, _window(LONG, 0.5)))
    worker.start()
    waits = []
    while worker.is_alive():
        waits.append(_seconds(lambda: client.get("api/health").raise_for_status()))
    worker.join()
    return max(waits)


def _median(task: Callable[[], object]) -> float:
    return statistics.median(_seconds(task) for _ in range(ROUNDS))


def _seconds(task: Callable[[], object]) -> float:
    start = time.perf_counter()
    task()
    return time.perf_counter() - start
