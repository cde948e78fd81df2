"""Requests that come as messages: answered byte for byte as the server answers them."""

import asyncio
import json
from queue import Queue

import pytest
from support.explorer import address

from regard.page._interface import BODY, interface
from regard.page._widget import OPEN, Messages
from regard.page._work import Work

LIMIT = 30  # seconds, for what should not take any
HEADS = {"layer": 1, "head": 2}
MEAN = {"layer": 0, "head": "mean"}


@pytest.fixture
def talk():
    """Send messages to an application; receive what it answers."""
    opened = []

    def begin(app):
        answers = Queue()
        messages = Messages(app, lambda content, buffers: answers.put((content, buffers)))
        opened.append(messages)
        return messages.receive, lambda: answers.get(timeout=LIMIT)

    yield begin
    for messages in opened:
        messages.close()


@pytest.fixture
def send(talk):
    """Ask something's interface by messages; give status, headers and body."""
    works = []

    def to(subject):
        works.append(Work())
        tell, answer = talk(interface(subject, works[-1]))

        def ask(method, path, body=None):
            headers = {"X-Client": "me", "X-View": "map"}
            headers |= {} if body is None else {"Content-Type": "application/json"}
            text = None if body is None else json.dumps(body)
            message = {"page": "p", "id": 5, "method": method, "path": path}
            tell({**message, "headers": headers, "body": text})
            parts = []
            while not parts or parts[-1][0]["more"]:
                part = answer()
                if "pending" in part[0]:  # on a busy machine
                    continue
                parts.append(part)
                assert (parts[-1][0]["page"], parts[-1][0]["id"]) == ("p", 5)
            assert all(set(head) == {"page", "id", "more"} for head, _ in parts[1:])
            first = parts[0][0]
            body = b"".join(buffer for _, buffers in parts for buffer in buffers)
            return first["status"], first["headers"], body

        return ask

    yield to
    for work in works:
        work.close()


def served(client, method, path, body=None):
    answer = client.request(method, path, json=body, headers={"X-Client": "me", "X-View": "map"})
    headers = dict(answer.headers.items())
    policies = ("content-security-", "x-content-", "referrer-", "cross-origin-", "cache-control")
    return answer.status_code, answer.content, headers, policies


def same(answer, expected):
    status, headers, body = answer
    code, content, expected_headers, policies = expected
    assert (status, body) == (code, content)
    beside = {name for name in expected_headers if name.startswith(policies)}
    assert headers == {n: value for n, value in expected_headers.items() if n not in beside}


def test_a_model_is_answered_for_as_by_the_server(send, client, subject):
    ask = send(subject)
    (name,) = subject.about()["runs"]
    cut = {"kind": "off", "layer": 0, "head": 1}
    cases = [
        ("GET", "/api/health"),
        ("GET", "/api/about"),
        ("GET", address(name)),
        ("POST", "/api/runs", {"text": "the dog sat ω"}),
        ("POST", "/api/runs", {"text": ""}),
        ("POST", "/api/runs", {"text": 3}),
        ("POST", address(name, "append"), {"token": 17}),
        ("POST", address(name, "generate"), {"tokens": 3, "seed": 11}),
        ("POST", address(name, "changed"), {"changes": [cut]}),
        ("GET", address(name, "heads")),
        ("GET", address(name, "thumbnails", layer=1, size=7)),
        ("GET", address(name, "map", **HEADS, queries="2,11", keys="0,8", block=2)),
        ("GET", address(name, "row", **MEAN, query=9)),
        ("GET", address(name, "column", **HEADS, key=3)),
        ("GET", address(name, "cell", **HEADS, query=9, key=3)),
        ("GET", address(name, "readouts", **HEADS)),
        ("GET", address(name, "steps", **HEADS, query=7)),
        ("GET", address(name, "row", **HEADS, query=10_000)),
        ("GET", address("none", "row", **HEADS, query=1)),
        ("GET", "/api/training"),
        ("GET", "/api/nothing?of=this%20kind"),
        ("POST", "/api/runs", {"text": "a" * (BODY - len('{"text": ""}'))}),
        ("POST", "/api/runs", {"text": "a" * (BODY // 2)}),
    ]
    for case in cases:
        same(ask(*case), served(client, *case))


def test_a_recording_is_answered_for_as_by_the_server(send, reader, recorded):
    ask = send(recorded)
    for case in [
        ("GET", "/api/about"),
        ("GET", address("1", "heads")),
        ("GET", "/api/runs/%31"),
        ("GET", address("1", "readouts/progress", **HEADS)),
        ("GET", address("1", "map", **HEADS, queries="0,13", keys="0,13", block=1)),
        ("POST", "/api/runs", {"text": "the dog"}),
    ]:
        served(reader, *case)  # what was read is kept, so that progress is reported once
        same(ask(*case), served(reader, *case))


async def silent(scope, receive, send):
    """Answers once its request is called off."""
    assert (await receive())["body"] == b"x"
    assert (await receive())["type"] == "http.disconnect"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"too late"})


def request(number, **changed):
    message = {"page": "p", "id": number, "method": "POST", "path": "/", "body": "x"}
    return message | changed


def test_a_cancelled_request_is_not_answered(talk):
    ended = Queue()

    async def app(scope, receive, send):
        await silent(scope, receive, send)
        ended.put(True)

    tell, answer = talk(app)
    tell(request(3))
    tell({"page": "q", "id": 3, "cancel": True})  # of another page
    tell(request(3))
    head, (body,) = answer()
    assert (head["status"], json.loads(body)) == (422, {"error": "request 3 is open already"})
    tell({"page": "p", "id": 3, "cancel": True})
    assert ended.get(timeout=LIMIT)
    tell(request(3, id="3"))
    head, _ = answer()  # the next one that is answered
    assert head["id"] == "3"


def test_the_page_is_notified_while_a_request_is_computed(talk, monkeypatch):
    monkeypatch.setattr("regard.page._widget.PENDING", 0)
    tell, answer = talk(silent)
    tell(request(3))
    for _ in range(2):
        assert answer() == ({"page": "p", "id": 3, "pending": True}, [])


def test_parts_are_streamed(talk):
    go = []

    async def app(scope, receive, send):
        go.append((asyncio.get_running_loop(), asyncio.Event()))
        await send({"type": "http.response.start", "status": 206, "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        await go[0][1].wait()
        await send({"type": "http.response.body", "body": b""})

    tell, answer = talk(app)
    tell(request(0))
    head = {"page": "p", "id": 0}
    assert answer() == (head | {"status": 206, "headers": {"a": "b"}, "more": True}, [b"first"])
    loop, event = go[0]
    loop.call_soon_threadsafe(event.set)
    assert answer() == (head | {"more": False}, [])


def test_a_number_can_be_used_again_once_its_answer_is_there(talk):
    answered, go = Queue(), []

    async def app(scope, receive, send):
        go.append((asyncio.get_running_loop(), asyncio.Event()))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(len(go)).encode()})
        await go[-1][1].wait()  # as an application that has something to do after its answer
        answered.put(True)

    tell, answer = talk(app)
    head = {"page": "p", "id": 3, "status": 200, "headers": {}, "more": False}
    tell(request(3))
    assert answer() == (head, [b"1"])
    tell(request(3))
    assert answer() == (head, [b"2"])
    for loop, event in go:
        loop.call_soon_threadsafe(event.set)
        assert answered.get(timeout=LIMIT)
    tell(request(3))
    assert answer() == (head, [b"3"])


def test_more_requests_than_can_be_open_are_refused(talk):
    tell, answer = talk(silent)
    for number in range(OPEN + 1):
        tell(request(number))
    head, (body,) = answer()
    assert (head["id"], head["status"]) == (OPEN, 503)
    assert json.loads(body)["error"].startswith("too many requests are open")


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (7, "the request's body is not a JSON object"),
        (request(-1), "id is -1, but must be at least 0"),
        (request(1, page="p p"), "page is 'p p', but must be made of"),
        (request(1, method="PUT"), "method is 'PUT', but"),
        (request(1, path="/" * 2**15), "path is '///"),
        (request(1, headers={"Host": "evil"}), "headers.Host.[key] is 'Host', but"),
        (request(1, body="\ud800"), "body is not Unicode"),
        (request(1, body="x" * (BODY + 1)), "body is 'xxx"),
        (request(1, path="/\ud800"), "path is not Unicode"),
        (request(1, more=True), "more is not a field of this request; leave it out"),
        ({"page": "p", "id": 1, "cancel": "yes"}, "cancel is 'yes', but"),
    ],
)
def test_invalid_requests_are_refused_in_a_sentence(talk, message, why):
    tell, answer = talk(silent)
    tell(message)
    head, (body,) = answer()
    assert head["status"] == 422
    assert json.loads(body)["error"].startswith(why)
