"""Connections that are closed where a request is not completed."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

IDLE = 30.0
"""Seconds that a request's head may take, and that may pass between two parts of its body."""


class Protocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's, which waits forever for half a request, with a time limit."""

    cycle: Any
    _end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest, if there is one."""
        super().data_received(data)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        between = self.cycle is None or self.cycle.response_complete
        if between and self._end is not None:
            return  # a head that comes byte by byte gets no more time
        self._stop_waiting()
        if between or self.cycle.more_body:
            self._end = self.loop.call_later(IDLE, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None
