"""A server as `regard explore` runs it, and a client."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx

    from regard.explorer.subjects import Subject


@contextmanager
def served(subject: Subject) -> Iterator[httpx.Client]:
    """Serve something, and give a client once the server is up."""
    import httpx

    from regard.explorer import Explorer

    explorer = Explorer(subject)
    gc.freeze()  # as the command does
    explorer.start()
    try:
        with httpx.Client(base_url=explorer.url, timeout=60) as client:
            _wait_for(client)
            yield client
    finally:
        explorer.stop()


def _wait_for(client: httpx.Client, seconds: float = 30) -> None:
    """Wait until the server answers.

    Raises:
        TimeoutError: it does not in so many seconds.
    """
    import httpx

    deadline = time.monotonic() + seconds
    while True:
        try:
            client.get("api/health")
        except httpx.ConnectError:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no answer from {client.base_url} in {seconds} s") from None
            time.sleep(0.05)
        else:
            return
