"""Requests of milliseconds do not wait for longer ones.

No clock decides here: what takes long stands still until the test lets it go.
"""

import asyncio
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Event, get_native_id

import pytest
from support.explorer import in_loop

from regard.page import PageError, _bands
from regard.page._windows import Window
from regard.page._work import WAITING, Lane

LIMIT = 30  # seconds, for what should not take any
LAYER, HEAD = 1, 4

QUICK = {
    "row": "row?layer=1&head=4&query=12",
    "cell": "cell?layer=1&head=4&query=12&key=3",
    "steps": "steps?layer=1&head=4&query=12",
    "sketch": "sketch?layer=1&head=4&block=4",
    "sketch of a mean": "sketch?layer=mean&head=mean&block=4",
    "row of a mean": "row?layer=mean&head=mean&query=11",
    "cell of a mean": "cell?layer=1&head=mean&query=11&key=3",
    "description": "",
}
"""Of any head, those of a recording that was just opened among them."""
OF_A_KNOWN_HEAD = QUICK | {
    "column": "column?layer=1&head=4&key=3",
    "window": "map?layer=1&head=4&queries=4,12&keys=0,8&block=2",
    "whole": "map?layer=1&head=4&queries=0,13&keys=0,13&block=1",
}
LONG = {
    "thumbnails": ["thumbnails?layer=0&size=8", "thumbnails?layer=1&size=8"],
    "scores": ["heads", "heads"],
    "map": [f"map?layer=0&head={head}&queries=0,13&keys=0,13&block=1" for head in (0, 1, 2)],
    "readouts": ["readouts?layer=mean&head=mean", "readouts/progress?layer=0&head=mean"],
    "column": ["column?layer=0&head=0&key=3", "column?layer=0&head=mean&key=3"],
}


@pytest.fixture
def explorer(serve, recorded):
    return serve(recorded)


@pytest.fixture
def ask(explorer, raw):
    return lambda path: raw(explorer, f"/api/runs/0/{path}".removesuffix("/")).status


@pytest.fixture
def busy(recorded, monkeypatch, ask):
    """Have the server compute all of these, or wait to: all heads but one stand still."""
    monkeypatch.setattr("regard.page._run._AT_ONCE", 0)  # as of a long text
    run, begun, go = recorded.run("0"), Event(), Event()
    pending, thumbnail = run._pending.of, _bands.thumbnail

    def hold():
        begun.set()
        assert go.wait(LIMIT)

    def held(place, pattern):
        if place != (LAYER, HEAD):
            hold()
        return pending(place, pattern)

    def held_picture(*arguments):
        hold()
        return thumbnail(*arguments)

    monkeypatch.setattr(run._pending, "of", held)
    monkeypatch.setattr("regard.page._run.thumbnail", held_picture)
    requests = []
    with ThreadPoolExecutor(4) as threads:

        def begin(paths):
            requests.extend(threads.submit(ask, path) for path in paths)
            assert begun.wait(LIMIT)

        yield begin
        still = not any(one.done() for one in requests)
        go.set()
        assert still
        assert {one.result(LIMIT) for one in requests} == {200}


@pytest.mark.parametrize("long", LONG)
def test_a_known_head_is_answered_while_others_are_computed(recorded, busy, ask, long):
    recorded.run("0").readouts(LAYER, HEAD)
    busy(LONG[long])
    assert {name: ask(path) for name, path in OF_A_KNOWN_HEAD.items()} == dict.fromkeys(
        OF_A_KNOWN_HEAD, 200
    )


def test_a_row_and_a_weight_need_no_more_than_their_row(recorded, busy, ask):
    busy(LONG["thumbnails"])
    assert {name: ask(path) for name, path in QUICK.items()} == dict.fromkeys(QUICK, 200)
    assert recorded.run("0").head(LAYER, HEAD)._logsumexp is None


def test_columns_and_readouts_do_not_wait_for_pictures_and_scores(busy, ask):
    busy([*LONG["thumbnails"], *LONG["scores"]])
    assert ask("column?layer=1&head=4&key=3") == 200
    assert ask("readouts?layer=1&head=4") == 200


def test_long_computations_are_not_quick(recorded, monkeypatch):
    run, whole = recorded.run("0"), Window((0, 13), (0, 13), 1)
    assert not run.has_column(0, 0)
    assert not run.has_map(0, 0, whole)
    run.column(0, 0, 3)
    assert run.has_column(0, 0)
    assert run.has_map(0, 0, whole)
    assert not run.has_column(0, "mean")
    run.column(0, "mean", 3)
    assert run.has_column(0, "mean")
    monkeypatch.setattr("regard.page._run._LINES", 13 * 5)
    monkeypatch.setattr("regard.page._run._WINDOW", 13 * 12)
    monkeypatch.setattr("regard.page._run._SKETCH", 6 * 13 * 4)
    assert run.has_sketch(0, "mean", 4)
    assert not run.has_sketch(0, "mean", 2)
    assert run.has_sketch(0, 0, 1)
    assert run.has_row(0, 0)
    assert not run.has_row(0, "mean")  # of six heads
    assert not run.has_column(0, "mean")
    assert not run.has_map(0, 1, whole)
    assert run.has_map(0, 1, Window((0, 12), (0, 13), 1))
    run.map(0, 1, whole, Event())
    assert run.has_map(0, 1, whole)  # it is kept


@pytest.mark.parametrize("place", [(0, "mean"), ("mean", "mean")])
def test_the_map_of_a_mean_is_cached(recorded, place):
    run, whole = recorded.run("0"), Window((0, 13), (0, 13), 2)
    run.map(*place, whole, Event())
    assert run.has_map(*place, whole)


@in_loop
async def test_lanes_do_not_wait_for_each_other(work):
    go = Event()
    slow = [lane for lane in Lane if lane is not Lane.QUICK]
    requests = [
        asyncio.ensure_future(work.run(None, lambda cancelled: go.wait(LIMIT), lane))
        for lane in slow
        for _ in range(WAITING)
    ]
    await asyncio.sleep(0)
    for lane in slow:
        with pytest.raises(PageError, match="too many"):
            await work.run(None, lambda cancelled: 1, lane)
    assert await work.run(None, lambda cancelled: 7, Lane.QUICK) == 7
    go.set()
    assert all(await asyncio.gather(*requests))


@in_loop
async def test_pictures_do_not_wait_for_two_measurements_of_effects(work):
    go, lane = Event(), Lane.BACKGROUND
    effects = [
        asyncio.ensure_future(work.run(None, lambda cancelled: go.wait(LIMIT), lane))
        for _ in range(2)
    ]
    await asyncio.sleep(0)
    assert await work.run(None, lambda cancelled: 7, lane) == 7
    assert not any(one.done() for one in effects)
    go.set()
    assert all(await asyncio.gather(*effects))


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
@in_loop
async def test_the_background_has_a_lower_priority(work):
    def priority(cancelled):
        return os.getpriority(os.PRIO_PROCESS, get_native_id())

    quick, shown, background = [await work.run(None, priority, lane) for lane in Lane]
    assert quick == shown < background


THREADS = """
import asyncio
import torch
from regard.page._work import Lane, Work

def compute(off):
    torch.ones(300, 300) @ torch.ones(300, 300)
    return torch.get_num_threads()

async def ask():
    torch.set_num_threads(3)
    work = Work()
    print([await work.run(None, compute, lane) for lane in Lane], torch.get_num_threads())
    work.close()

asyncio.run(ask())
"""


@pytest.mark.thorough
def test_the_quick_lane_computes_on_one_thread_and_all_others_as_before():
    """In a process of its own, which has three threads wherever it runs."""
    command = [sys.executable, "-c", THREADS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[1, 3, 3] 3\n"
