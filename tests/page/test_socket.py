"""Connections: answers are sent without delay, and incomplete requests time out."""

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event

import pytest

from regard.page import Explorer

LIMIT = 30  # seconds, for what should not take any


def test_nothing_waits_for_an_acknowledgement(recorded, monkeypatch):
    accepted = []
    plain = socket.socket.accept

    def accept(self):
        connection, address = plain(self)
        accepted.append(connection)
        return connection, address

    monkeypatch.setattr(socket.socket, "accept", accept)
    explorer = Explorer(recorded)
    explorer.start()
    try:
        with socket.create_connection((explorer.host, explorer.port)) as client:
            client.sendall(b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert client.recv(12) == b"HTTP/1.1 200"
            (connection,) = accepted
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    finally:
        explorer.stop()


@pytest.mark.parametrize("host", ["", "0", "0.0.0.0"])
def test_every_name_of_all_addresses_is_known(recorded, host):
    explorer = Explorer(recorded, host=host)
    try:
        assert explorer.is_everywhere
        assert explorer.url == f"http://127.0.0.1:{explorer.port}/"
    finally:
        explorer.stop()


def test_a_port_out_of_range(recorded):
    with pytest.raises(ValueError, match="port must be a number from 0 to 65535, but is 65536"):
        Explorer(recorded, port=65536)


@pytest.fixture
def impatient(serve, recorded, monkeypatch):
    """A server that waits for the rest of a request hardly at all."""
    monkeypatch.setattr("regard.page._explore.RECEIVING", 0.05)
    return serve(recorded)


def connect(explorer):
    return socket.create_connection((explorer.host, explorer.port), timeout=LIMIT)


HALVES = {
    "nothing": b"",
    "half a line": b"GET /api/hea",
    "half a head": b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1\r\n",
    "half a body": b"POST /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json"
    b"\r\nContent-Length: 99\r\n\r\n{",
}


@pytest.mark.parametrize("half", HALVES)
def test_an_incomplete_request_times_out(impatient, half):
    with connect(impatient) as client:
        client.sendall(HALVES[half])
        assert client.recv(1) == b""


@pytest.mark.parametrize("half", ["half a head", "half a body"])
def test_a_request_sent_byte_by_byte_times_out_too(impatient, half):
    count = 2**20  # bytes that take longer to send one by one than the server waits
    begun = HALVES[half].replace(b"Content-Length: 99", b"Content-Length: %d" % count)
    sent = 0
    with connect(impatient) as client, suppress(ConnectionError):
        client.sendall(begun)
        while sent < 2 * count:
            sent += client.send(b" ")
    assert sent < count


def test_an_incomplete_request_after_a_complete_one_times_out(impatient):
    with connect(impatient) as client:
        client.sendall(b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 200"
        client.sendall(b"GET")
        while client.recv(2**16):
            pass


def test_an_answer_may_take_longer_than_half_a_request(impatient, recorded, raw, monkeypatch):
    run, begun, go = recorded.run("0"), Event(), Event()
    plain = run.row

    def held(*given):
        begun.set()
        assert go.wait(LIMIT)
        return plain(*given)

    monkeypatch.setattr(run, "row", held)
    with ThreadPoolExecutor(1) as thread:
        request = thread.submit(raw, impatient, "/api/runs/0/row?layer=0&head=0&query=5")
        assert begun.wait(LIMIT)
        with connect(impatient) as later:  # which the server gives up afterwards
            assert later.recv(1) == b""
        go.set()
        assert request.result(LIMIT).status == 200


def test_who_asks_for_a_websocket_is_refused_in_silence(serve, recorded, raw, capfd):
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    key = {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
    assert raw(serve(recorded), "/ws", headers=upgrade | key).status == 404
    assert capfd.readouterr() == ("", "")
