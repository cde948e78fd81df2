"""Connections that are closed where a request is not received whole in time."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

RECEIVING = 10.0
"""Seconds until a new connection's first byte, and from a request's first byte to its last."""


class Protocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's, which waits forever for half a request, with a time limit."""

    cycle: Any
    _end: asyncio.TimerHandle | None = None
    _has_begun = False
    """Whether some of a request is there, and not yet all of it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest, if there is one: what comes byte by byte gets no more time."""
        if not self._has_begun:
            self._wait()
        super().data_received(data)
        between = self.cycle is None or self.cycle.response_complete
        self._has_begun = between or self.cycle.more_body
        if not self._has_begun:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._stop_waiting()
        self._end = self.loop.call_later(RECEIVING, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None
