"""Computations off the event loop: replacement, queues and cancellation.

No clock decides here: a computation stands still until the test lets it go.
"""

import asyncio
import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from time import sleep

import pytest
import torch
from support.explorer import in_loop

from regard.page import PageError, RecordingSubject
from regard.page._work import WAITING, ReplacedError, Work

LIMIT = 30  # seconds, for what should not take any


class Held:
    """A computation that stands still until it is let go."""

    def __init__(self):
        self.begun, self.go, self.cancelled = Event(), Event(), None

    def __call__(self, cancelled):
        self.cancelled = cancelled
        self.begun.set()
        assert self.go.wait(LIMIT)
        if cancelled.is_set():
            raise ReplacedError("replaced")
        return "done"

    async def begin(self, work, view):
        task = asyncio.ensure_future(work.run(view, self))
        assert await asyncio.to_thread(self.begun.wait, LIMIT)
        return task


@in_loop
async def test_a_newer_one_of_the_same_view_cancels_the_older(work):
    older = Held()
    waiting = await older.begin(work, "a")
    assert not older.cancelled.is_set()
    assert await work.run("a", lambda cancelled: cancelled.is_set()) is False
    assert older.cancelled.is_set()
    older.go.set()
    with pytest.raises(ReplacedError):
        await waiting


@in_loop
async def test_other_views_are_not_cancelled(work):
    older = Held()
    waiting = await older.begin(work, "a")
    for view in ("b", None):
        assert await work.run(view, lambda cancelled: 7) == 7
    assert not older.cancelled.is_set()
    older.go.set()
    assert await waiting == "done"


@in_loop
async def test_one_that_was_replaced_while_it_waited_never_begins(work):
    held = [Held(), Held()]
    busy = [await one.begin(work, None) for one in held]
    begun = []
    older, newer = (
        asyncio.ensure_future(work.run("a", lambda cancelled, n=n: begun.append(n))) for n in (0, 1)
    )
    await asyncio.sleep(0)
    for one in held:
        one.go.set()
    with pytest.raises(ReplacedError):
        await older
    await newer
    await asyncio.gather(*busy)
    assert begun == [1]


@in_loop
async def test_a_computation_whose_client_disconnects_is_cancelled(work):
    held = Held()
    waiting = await held.begin(work, "a")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert held.cancelled.is_set()
    held.go.set()
    assert await work.run("a", lambda cancelled: cancelled.is_set()) is False


@in_loop
async def test_when_too_many_wait_another_is_refused_and_the_older_goes_on(work):
    held = [Held(), Held()]
    busy = [await held[0].begin(work, "a"), await held[1].begin(work, None)]
    busy += [asyncio.ensure_future(work.run(None, lambda cancelled: 1)) for _ in range(WAITING - 2)]
    await asyncio.sleep(0)
    for view in (None, "a"):
        with pytest.raises(PageError, match="too many"):
            await work.run(view, lambda cancelled: 1)
    assert not held[0].cancelled.is_set()  # nothing came in its place
    for one in held:
        one.go.set()
    assert len(await asyncio.gather(*busy)) == WAITING
    assert await work.run("a", lambda cancelled: 1) == 1
    assert work._current == {}
    assert not work._requests


@in_loop
async def test_a_failed_computation_frees_its_place(work):
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await work.run("a", lambda cancelled: 1 / 0)
    assert work._current == {}
    assert not work._requests


@in_loop
async def test_closing_cancels_all():
    work, held = Work(), Held()
    waiting = await held.begin(work, "a")
    work.close()
    assert held.cancelled.is_set()
    held.go.set()
    with pytest.raises(ReplacedError):
        await waiting


# Through the server


@pytest.fixture
def slow(recorded, monkeypatch):
    """Rows of query 0 … stand still, each held by its own."""
    held = {}
    run = recorded.run("0")
    plain = run.map

    def map_held(layer, head, window, cancelled):
        if window.queries[0] in held:
            held[window.queries[0]](cancelled)
        return plain(layer, head, window, cancelled)

    monkeypatch.setattr(run, "map", map_held)

    def hold(*firsts):
        held.update((first, Held()) for first in firsts)
        return [held[first] for first in firsts]

    yield hold
    for one in held.values():
        one.go.set()


def picture(first, **headers):
    path = f"/api/runs/0/map?layer=0&head=0&queries={first},13&keys=0,13&block=2"
    named = {"client": "X-Client", "view": "X-View"}
    return {"path": path, "headers": {named[name]: value for name, value in headers.items()}}


@pytest.fixture
def threads():
    with ThreadPoolExecutor(8) as pool:
        yield pool


def test_a_replaced_request_is_answered_409(serve, raw, recorded, slow, threads):
    (held,) = slow(0)
    explorer = serve(recorded)
    older = threads.submit(raw, explorer, **picture(0, client="c", view="map"))
    assert held.begun.wait(LIMIT)
    newer = raw(explorer, **picture(1, client="c", view="map"))
    assert newer.status == 200
    assert held.cancelled.is_set()
    held.go.set()
    answer = older.result(LIMIT)
    assert answer.status == 409
    assert answer.body == b'{"error":"replaced"}'


def test_requests_do_not_overtake_each_other(serve, recorded, monkeypatch):
    """Else the older of a view would replace the newer, and the page would show nothing."""
    explorer = serve(recorded)
    run, order = recorded.run("0"), []
    plain = run.map
    monkeypatch.setattr(
        run, "map", lambda *given: order.append(given[2].queries[0]) or plain(*given)
    )
    with contextlib.ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_connection((explorer.host, explorer.port)))
            for _ in range(50)
        ]
        for first, sock in enumerate(sockets):
            head = f"GET {picture(first % 13)['path']} HTTP/1.1\r\nHost: {explorer.host}\r\n"
            sock.sendall(f"{head}X-Client: c\r\nX-View: v\r\n\r\n".encode())
        answers = [sock.recv(2**16).split(b" ", 2)[1] for sock in sockets]
    assert answers[-1] == b"200"
    assert set(answers) <= {b"200", b"409"}
    assert order[-1] == 49 % 13


@pytest.mark.parametrize(
    "names",
    [{"client": "other", "view": "map"}, {"client": "c", "view": "rail"}, {"view": "map"}, {}],
    ids=["another page", "another view", "no client", "no names"],
)
def test_only_the_same_view_of_the_same_page_replaces(serve, raw, recorded, slow, threads, names):
    (held,) = slow(0)
    explorer = serve(recorded)
    older = threads.submit(raw, explorer, **picture(0, client="c", view="map"))
    assert held.begun.wait(LIMIT)
    assert raw(explorer, **picture(1, **names)).status == 200
    assert not held.cancelled.is_set()
    held.go.set()
    assert older.result(LIMIT).status == 200


def test_health_and_the_page_are_there_while_everything_computes(
    serve, raw, recorded, slow, threads
):
    held = slow(0, 1)
    explorer = serve(recorded)
    busy = [threads.submit(raw, explorer, **picture(first)) for first in (0, 1)]
    assert all(one.begun.wait(LIMIT) for one in held)
    for path in ("/api/health", "/", "/page.js", "/api/about", "/api/runs/0"):
        assert raw(explorer, path).status == 200
    assert not any(one.done() for one in busy)
    for one in held:
        one.go.set()
    assert [one.result(LIMIT).status for one in busy] == [200, 200]


def test_too_many_at_a_time_are_told_to_try_again(serve, raw, recorded, slow, threads, monkeypatch):
    monkeypatch.setattr("regard.page._work.WAITING", 2)
    held = slow(0, 1)
    explorer = serve(recorded)
    busy = [threads.submit(raw, explorer, **picture(first)) for first in (0, 1)]
    assert all(one.begun.wait(LIMIT) for one in held)
    answer = raw(explorer, **picture(2))
    assert answer.status == 503
    assert b"try again" in answer.body
    monkeypatch.setattr("regard.page._work.WAITING", 0)
    heads = raw(explorer, "/api/runs/0/heads")
    assert heads.status == 503 or b"try again" in heads.body
    monkeypatch.setattr("regard.page._work.WAITING", 2)
    for one in held:
        one.go.set()
    assert [one.result(LIMIT).status for one in busy] == [200, 200]
    assert raw(explorer, **picture(2)).status == 200


def leave(explorer, method, path, body=b"", wait=lambda sock: None):
    """Ask, and hang up before the answer is whole."""
    with socket.create_connection((explorer.host, explorer.port), timeout=LIMIT) as sock:
        head = f"{method} {path} HTTP/1.1\r\nHost: {explorer.host}:{explorer.port}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)
        wait(sock)


def test_a_picture_whose_page_was_closed_is_cancelled(serve, recorded, slow):
    (held,) = slow(0)
    explorer = serve(recorded)
    leave(explorer, "GET", picture(0)["path"], wait=lambda sock: held.begun.wait(LIMIT))
    assert held.cancelled.wait(5)  # the server hears of it a moment after
    held.go.set()


def test_generation_stops_when_its_page_is_closed(serve, subject, monkeypatch):
    drawn, more, over = [], Event(), Event()

    def endless(run, *, tokens, temperature, seed):
        try:
            for n in range(tokens):
                drawn.append(n)
                yield {"token": 1, "piece": "x"}
                if n == 2:
                    assert more.wait(LIMIT)
        finally:
            over.set()

    monkeypatch.setattr(subject, "generate", endless)
    explorer = serve(subject)
    (name,) = subject.about()["runs"]

    def until_two(sock):
        seen = b""
        while seen.count(b'"token"') < 3:
            seen += sock.recv(4096)

    leave(explorer, "POST", f"/api/runs/{name}/generate", b'{"tokens": 400}', until_two)
    sleep(0.3)  # the server hears of it a moment after
    more.set()
    over.wait(1)  # it would be long over if it went on
    assert len(drawn) < 10


def test_stopping_does_not_wait_for_computations(serve, raw, recorded, slow, threads):
    (held,) = slow(0)
    explorer = serve(recorded)
    busy = threads.submit(raw, explorer, **picture(0))
    assert held.begun.wait(LIMIT)
    assert not busy.done()
    held.go.set()
    explorer.stop()
    with pytest.raises(OSError, match=r"refused|reset"):
        raw(explorer, "/api/health")


def test_health_answers_before_a_large_map_does(serve, raw, make_recording, threads):
    """Nothing is held here: a map of 8,192 tokens is computed as it is on the page."""
    generator = torch.Generator().manual_seed(9)
    query, key = torch.randn(2, 1, 1, 8192, 16, generator=generator)
    recorded = RecordingSubject(make_recording([(query, key)]), title="large")
    run, begun, order = recorded.run("0"), Event(), []
    plain = run.map

    def computed(*given):
        begun.set()
        actual = plain(*given)
        order.append("map")
        return actual

    run.map = computed
    explorer = serve(recorded)
    path = "/api/runs/0/map?layer=0&head=0&queries=0,8192&keys=0,8192&block=8"
    answer = threads.submit(raw, explorer, path)
    assert begun.wait(LIMIT)
    assert raw(explorer, "/api/health").body == b'{"ok":true}'
    order.append("health")
    assert answer.result(LIMIT).status == 200
    assert order == ["health", "map"]


@in_loop
async def test_waiting_requests_fail_when_the_server_ends(work):
    held = Held()
    waiting = await held.begin(work, None)
    assert work.computing
    work.close()
    with pytest.raises(ReplacedError, match="ending"):
        await waiting  # though what is computed does not stop
    assert held.cancelled.is_set()
    assert work.computing
    with pytest.raises(ReplacedError, match="ending"):
        await work.run(None, lambda cancelled: 1)
    held.go.set()


@in_loop
async def test_one_that_has_not_begun_is_answered_too_when_the_server_ends(work):
    """Its future is cancelled then, which must not look as if whoever asked had gone."""
    held = [Held(), Held()]
    busy = [await one.begin(work, None) for one in held]
    waiting = asyncio.ensure_future(work.run(None, lambda cancelled: 1))
    await asyncio.sleep(0)
    work.close()
    for task in [*busy, waiting]:
        with pytest.raises(ReplacedError, match="ending"):
            await task
    for one in held:
        one.go.set()
