"""Computing off the event loop, where a newer request takes the place of the one it replaces."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")

WAITING = 64
"""Most computations that wait at a time."""


class ReplacedError(Exception):
    """A newer request took this one's place."""


class BusyError(Exception):
    """Too much is waiting already."""


class Work:
    """Threads that compute, and who waits for what.

    The kernels use all cores by themselves and let go of Python meanwhile, so two threads are
    enough: one computes while the other hands over.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="regard")
        self._current: dict[str, Event] = {}
        self._waiting = 0
        self._closed = False

    async def run(self, view: str | None, compute: Callable[[Event], Result]) -> Result:
        """Compute something in a thread.

        Args:
            view: what it is for; an older computation for the same view is called off. None: it
                replaces nothing.
            compute: does it; it is given an event that is set when its result is wanted no more,
                and may then raise `ReplacedError`.

        Raises:
            ReplacedError: a newer one took its place.
            BusyError: `WAITING` computations wait already.
        """
        if self._closed:
            raise ReplacedError("the server is ending")
        if self._waiting >= WAITING:
            raise BusyError("too many computations wait already; try again in a moment")
        off = Event()
        if view is not None:
            before = self._current.get(view)
            if before is not None:
                before.set()
            self._current[view] = off
        self._waiting += 1

        def begin() -> Result:
            if off.is_set():  # replaced while it waited
                raise ReplacedError("replaced")
            return compute(off)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, begin)
        except asyncio.CancelledError:  # whoever asked has gone
            off.set()
            raise
        finally:
            self._waiting -= 1
            if view is not None and self._current.get(view) is off:
                del self._current[view]

    def close(self) -> None:
        """Call everything off, and take nothing more."""
        self._closed = True
        for off in self._current.values():
            off.set()
        self._threads.shutdown(wait=False, cancel_futures=True)
