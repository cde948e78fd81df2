"""Answers go out at once."""

import socket

from regard.explorer import Explorer


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
