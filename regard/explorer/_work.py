"""Computing off the event loop, where a newer request takes the place of the one it replaces."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from threading import Event, get_native_id
from typing import TypeVar

import torch

from regard.errors import Error

Result = TypeVar("Result")

WAITING = 64
"""Most computations that wait at a time in a lane."""


class ReplacedError(Error):
    """A newer request took this one's place."""


class BusyError(Error):
    """Too much is waiting already."""


def require_wanted(cancelled: Event | None) -> None:
    """Raise `ReplacedError` once nobody wants the result any more."""
    if cancelled is not None and cancelled.is_set():
        raise ReplacedError("replaced")


class Lane(Enum):
    """What computations wait for: those of their own lane alone."""

    QUICK = 1
    """Milliseconds, such as a row: under the pointer, whatever else is computed."""
    SHOWN = 2
    """What is looked at and may take long, such as a map."""
    ASIDE = 3
    """What comes after everything else: pictures and scores of all heads."""


_THREADS = {Lane.QUICK: 2, Lane.SHOWN: 2, Lane.ASIDE: 1}
_NICE = 10
"""By how much others go before pictures and scores, where the system tells threads apart."""


class Work:
    """Threads that compute, and who waits for what.

    The kernels let go of Python while they compute, and use all cores by themselves, but in the
    quick lane.
    """

    def __init__(self) -> None:
        self._threads = {
            lane: ThreadPoolExecutor(count, f"regard {lane.name}", _PREPARED.get(lane))
            for lane, count in _THREADS.items()
        }
        self._current: dict[str, Event] = {}
        self._asking: dict[Event, asyncio.Future[None]] = {}  # done once the server ends
        self._waiting: Counter[Lane] = Counter()
        self._computing: set[Event] = set()
        self._closed = False

    async def run(
        self, view: str | None, compute: Callable[[Event], Result], lane: Lane = Lane.SHOWN
    ) -> Result:
        """Compute something in a thread.

        Args:
            view: what it is for; an older computation for the same view is cancelled. None: it
                replaces nothing.
            compute: does it; it takes an event that is set when its result is wanted no more,
                and may then raise `ReplacedError`.
            lane: what it may have to wait for.

        Raises:
            ReplacedError: a newer one took its place.
            BusyError: `WAITING` computations wait in this lane already.
        """
        if self._closed:
            raise ReplacedError("the server is ending")
        if self._waiting[lane] >= WAITING:
            raise BusyError("too many computations wait already; try again in a moment")
        cancelled = Event()
        if view is not None:
            before = self._current.get(view)
            if before is not None:
                before.set()
            self._current[view] = cancelled
        loop = asyncio.get_running_loop()
        ending = self._asking[cancelled] = loop.create_future()
        self._waiting[lane] += 1

        def begin() -> Result:
            require_wanted(cancelled)  # it may have been replaced while it waited
            self._computing.add(cancelled)
            try:
                return compute(cancelled)
            finally:
                self._computing.discard(cancelled)

        answer = loop.run_in_executor(self._threads[lane], begin)
        try:
            await asyncio.wait({answer, ending}, return_when=asyncio.FIRST_COMPLETED)
            if answer.cancelled() or not answer.done():
                raise ReplacedError("the server is ending")
            return await answer
        except asyncio.CancelledError:  # the client has gone
            cancelled.set()
            raise
        finally:
            answer.cancel()
            self._waiting[lane] -= 1
            del self._asking[cancelled]
            if view is not None and self._current.get(view) is cancelled:
                del self._current[view]

    @property
    def computing(self) -> bool:
        """Whether a thread is computing, though it may have been cancelled."""
        return bool(self._computing)

    def close(self) -> None:
        """Cancel everything, and take nothing more; whoever waits is answered at once."""
        self._closed = True
        for cancelled, ending in list(self._asking.items()):
            cancelled.set()
            ending.get_loop().call_soon_threadsafe(_finish, ending)
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)


def _by_itself() -> None:
    """Have this thread compute without others from now on.

    Where the cores are busy, a pool of threads waits for the last of them to get its turn, several
    times in each computation: for a row that is a hundred times what computing it takes. OpenMP
    has a number for each thread, but torch sets that of all threads; so OpenMP itself is called, in
    whichever runtime torch has loaded.
    """
    torch.get_num_threads()  # torch sets the number when a thread first needs it, and not again
    set_number = getattr(ctypes.CDLL(None), "omp_set_num_threads", None)
    if set_number is not None:
        set_number(1)


def _give_way() -> None:
    """Have this thread, and those that compute for it, give way to all others from now on."""
    if sys.platform == "linux":
        here = os.PRIO_PROCESS, get_native_id()
        os.setpriority(*here, os.getpriority(*here) + _NICE)


_PREPARED = {Lane.QUICK: _by_itself, Lane.ASIDE: _give_way}


def _finish(ending: asyncio.Future[None]) -> None:
    if not ending.done():
        ending.set_result(None)
