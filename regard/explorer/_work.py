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
        self._asking: dict[Event, asyncio.Future[None]] = {}  # done once the server ends
        self._computing: set[Event] = set()
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
        if len(self._asking) >= WAITING:
            raise BusyError("too many computations wait already; try again in a moment")
        off = Event()
        if view is not None:
            before = self._current.get(view)
            if before is not None:
                before.set()
            self._current[view] = off
        loop = asyncio.get_running_loop()
        ending = self._asking[off] = loop.create_future()

        def begin() -> Result:
            if off.is_set():  # replaced while it waited
                raise ReplacedError("replaced")
            self._computing.add(off)
            try:
                return compute(off)
            finally:
                self._computing.discard(off)

        answer = loop.run_in_executor(self._threads, begin)
        try:
            await asyncio.wait({answer, ending}, return_when=asyncio.FIRST_COMPLETED)
            if answer.cancelled() or not answer.done():
                raise ReplacedError("the server is ending")
            return await answer
        except asyncio.CancelledError:  # whoever asked has gone
            off.set()
            raise
        finally:
            answer.cancel()
            del self._asking[off]
            if view is not None and self._current.get(view) is off:
                del self._current[view]

    @property
    def computing(self) -> bool:
        """Whether a thread is computing, though it may have been called off."""
        return bool(self._computing)

    def close(self) -> None:
        """Call everything off, and take nothing more; whoever waits is answered at once."""
        self._closed = True
        for off, ending in list(self._asking.items()):
            off.set()
            ending.get_loop().call_soon_threadsafe(_finish, ending)
        self._threads.shutdown(wait=False, cancel_futures=True)


def _finish(ending: asyncio.Future[None]) -> None:
    if not ending.done():
        ending.set_result(None)
