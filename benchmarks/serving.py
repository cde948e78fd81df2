"""A server as `regard explore` runs it, and a client."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx

    from regard.page.subjects import Subject


@contextmanager
def served(subject: Subject) -> Iterator[httpx.Client]:
    """Serve something, and give a client once the server is up."""
    import httpx

    from regard.page import Explorer

    explorer = Explorer(subject)
    gc.freeze()  # as the command does
    explorer.start()
    try:
        with httpx.Client(base_url=explorer.url, timeout=60) as client:
            client.get("api/health")  # the socket listens already: this waits
            yield client
    finally:
        explorer.stop()
