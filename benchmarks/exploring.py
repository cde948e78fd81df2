"""How long the explorer takes to answer: maps, windows of them, the grid of heads.

Every number is of a request to a server that runs as `regard explore` runs it.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from importlib.util import find_spec
from math import log2
from typing import TYPE_CHECKING

import torch

import regard
from benchmarks.painting import painting
from benchmarks.serving import served
from regard.record import Recording

if TYPE_CHECKING:
    import httpx

    from benchmarks.report import Report

PIXELS = 800
LONG, USUAL, DIM = 65_536, 4096, 64
FIRST_MAPS = 1024, 2048, 4096, 8192  # lengths
GRIDS = (2048, 12, 12, 3.0), (USUAL, 30, 9, 5.0)  # length, layers, heads, seconds they may take
ROUNDS = 7
MANY = 25  # of what comes soon: the slowest of them counts
MEANWHILE = 0.1  # seconds, whatever else is computed
LAYERS_MEANWHILE = 4  # whose thumbnails take several times as long as all requests meanwhile


def exploring(report: Report) -> None:
    """Print the table."""
    if find_spec("httpx") is None:
        print("\nexploring: httpx is not installed")
        return
    title = f"exploring: what the page waits for, on a map of {PIXELS} × {PIXELS} pixels"
    report.table(title, ("request", 46), ("ms", 30))
    for length in FIRST_MAPS:
        taken = statistics.median(_first_map(length) for _ in range(ROUNDS))
        _row(report, f"map at {length}, whole, first time", taken, 0.1)
    with _recording(_recorded(USUAL, heads=1, layers=1)) as client:
        _map(client, _square(0, 0, 1))  # its log-sum-exps are known from now on
        for name, square in _squares(USUAL):
            taken = _median(partial(_map, client, square))
            _row(report, f"map at {USUAL}, {name}", taken, 0.1)
    with _recording(_recorded(LONG, heads=1, layers=1)) as client:
        _row(report, f"map at {LONG}, whole, first time", _whole_map(client, LONG), 1.0)
        for name, square in _squares(LONG):
            taken = _median(partial(_map, client, square))
            _row(report, f"map at {LONG}, {name}", taken, 0.3)
    with _recording(_recorded(LONG, heads=1, layers=1)) as client:
        _row(report, "health while the whole is computed", _health_meanwhile(client), 0.05)
    for length, layers, heads, most in GRIDS:
        with _recording(_recorded(length, heads=heads, layers=layers)) as client:
            taken = _seconds(partial(_thumbnails, client, range(layers)))
            _row(report, f"{layers} × {heads} thumbnails at {length}", taken, most)
    _meanwhile(report)
    report.table("exploring: the page in a browser, from its request on", ("map", 56), ("ms", 30))
    painting(report, partial(_recorded, LONG, heads=1, layers=1), LONG)


def _meanwhile(report: Report) -> None:
    """Requests for a known head while two others wait for thumbnails of long layers."""
    title = f"exploring: of a known head at {LONG}, while thumbnails of others are computed"
    report.table(title, ("request", 20), ("ms, median", 30), ("ms, the slowest", 30))
    with _recording(_recorded(LONG, heads=2, layers=LAYERS_MEANWHILE)) as client:
        _map(client, _square(0, 0, LONG))
        requests = [
            threading.Thread(target=_thumbnails, args=(client, layers))
            for layers in (range(0, LAYERS_MEANWHILE, 2), range(1, LAYERS_MEANWHILE, 2))
        ]
        for thread in requests:
            thread.start()
        time.sleep(1)
        last = LONG - 1
        for name, at in {
            "row": f"row?query={last}",
            "column": "column?key=0",
            "cell": f"cell?query={last}&key=0",
            "steps": f"steps?query={last}",
            "map, whole again": f"map?queries=0,{LONG}&keys=0,{LONG}&block=64",
            "map, 1000 tokens": f"map?queries={LONG - 1000},{LONG}&keys=0,1000&block=1",
        }.items():
            path = f"api/runs/0/{at}&layer=0&head=0"
            waits = [_seconds(partial(_get, client, path)) for _ in range(MANY)]
            slowest = report.at_most(f"{name}, slowest", max(waits) * 1e3, MEANWHILE * 1e3, ".1f")
            median = report.at_most(name, statistics.median(waits) * 1e3, MEANWHILE * 1e3, ".1f")
            report.row(name, median, slowest)
        assert all(thread.is_alive() for thread in requests), "they were to be computed meanwhile"
        for thread in requests:
            thread.join()


def _row(report: Report, name: str, seconds: float, target: float) -> None:
    report.row(name, report.at_most(name, seconds * 1e3, target * 1e3, ".1f"))


def _recorded(length: int, *, heads: int, layers: int) -> Recording:
    query, key = torch.randn(2, 1, heads, length, DIM).unbind()
    with regard.record() as recording:
        for _ in range(layers):
            regard.attention(query, key, key, mask=regard.causal())
    return recording


def _recording(recording: Recording) -> AbstractContextManager[httpx.Client]:
    from regard.page import RecordingSubject

    return served(RecordingSubject(recording, title="recording"))


def _squares(length: int) -> Iterator[tuple[str, dict[str, str]]]:
    """Windows below the diagonal, where nothing is hidden; the small are finer than the whole."""
    yield "whole again", _square(0, 0, length)
    yield "a quarter", _square(length // 2, 0, length // 2)
    yield "a thirteenth", _square(length // 2, length // 5, length * 5 // 18)
    yield "a hundredth", _square(length // 2, length // 5, length // 10)


def _square(query: int, key: int, span: int) -> dict[str, str]:
    """The page's request for a square window, in cells of about a pixel."""
    block = 2 ** max(0, round(log2(span / PIXELS)))
    first = [at // block * block for at in (query, key)]
    queries, keys = (f"{at},{at + -(-span // block) * block}" for at in first)
    return {"queries": queries, "keys": keys, "block": str(block)}


def _map(client: httpx.Client, square: dict[str, str]) -> None:
    _get(client, "api/runs/0/map", layer="0", head="0", **square)


def _first_map(length: int) -> float:
    with _recording(_recorded(length, heads=1, layers=1)) as client:
        return _whole_map(client, length)


def _whole_map(client: httpx.Client, length: int) -> float:
    return _seconds(lambda: _map(client, _square(0, 0, length)))


def _thumbnails(client: httpx.Client, layers: range) -> None:
    for layer in layers:
        _get(client, f"api/runs/0/thumbnails?layer={layer}&size=64")


def _health_meanwhile(client: httpx.Client) -> float:
    """The slowest of the answers that come while a map is computed."""
    worker = threading.Thread(target=_map, args=(client, _square(0, 0, LONG)))
    worker.start()
    waits = []
    while worker.is_alive():
        waits.append(_seconds(partial(_get, client, "api/health")))
    worker.join()
    return max(waits)


def _get(client: httpx.Client, path: str, **params: str) -> None:
    client.get(path, params=params or None).raise_for_status()


def _median(task: Callable[[], object]) -> float:
    return statistics.median(_seconds(task) for _ in range(ROUNDS))


def _seconds(task: Callable[[], object]) -> float:
    start = time.perf_counter()
    task()
    return time.perf_counter() - start
