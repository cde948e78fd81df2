"""Computations off the event loop: queues with threads of their own, and cancellation."""

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
from regard.page._errors import PageError

Result = TypeVar("Result")

WAITING = 64
"""Largest number of computations in a lane."""


class ReplacedError(Error):
    """A computation whose result nobody waits for any more, such as of a replaced request."""


def require_wanted(cancelled: Event | None) -> None:
    """Raise `ReplacedError` once the result is not needed any more."""
    if cancelled is not None and cancelled.is_set():
        raise ReplacedError("replaced")


class Lane(Enum):
    """A queue of computations with threads of its own: none waits for those of another lane."""

    QUICK = 1
    """Milliseconds, such as a row: under the pointer, whatever else is computed."""
    SHOWN = 2
    """What a reader waits for and may take long, such as a map."""
    BACKGROUND = 3
    """Pictures and scores of all heads; effects, which take many runs of the model.

    In one lane with them, a map of 4,096 tokens takes 3 seconds and more instead of 0.2."""


_NICE = 10  # added to the nice value of the threads of the lane BACKGROUND


class Work:
    """Thread pools, one for each lane, and the cancellation of computations in them.

    Kernels release the GIL while they compute, and use all cores, except in the quick lane.
    """

    def __init__(self) -> None:
        self._threads = {
            Lane.QUICK: ThreadPoolExecutor(2, "regard quick", _use_one_thread),
            Lane.SHOWN: ThreadPoolExecutor(2, "regard shown"),
            # Effects of heads and of passages at the same time leave one for pictures and scores.
            Lane.BACKGROUND: ThreadPoolExecutor(3, "regard background", _lower_priority),
        }
        self._current: dict[str, Event] = {}
        self._requests: dict[Event, asyncio.Future[None]] = {}  # done once the server ends
        self._waiting: Counter[Lane] = Counter()
        self._computing: set[Event] = set()
        self._closed = False

    async def run(
        self, view: str | None, compute: Callable[[Event], Result], lane: Lane = Lane.SHOWN
    ) -> Result:
        """Compute something in a thread.

        Args:
            view: the view of the page that asks, whose older computation is cancelled; None
                cancels nothing.
            compute: the computation; it takes an event that is set once its result is not
                needed, and may then raise `ReplacedError`.
            lane: the queue that it waits in.

        Raises:
            ReplacedError: it was cancelled.
            PageError: `WAITING` computations are in this lane already.
        """
        if self._closed:
            raise ReplacedError("the server is ending")
        if self._waiting[lane] >= WAITING:
            sentence = "too many computations wait already; try again in a moment"
            raise PageError(sentence, status=503)
        cancelled = Event()
        if view is not None:
            before = self._current.get(view)
            if before is not None:
                before.set()
            self._current[view] = cancelled
        loop = asyncio.get_running_loop()
        ending = self._requests[cancelled] = loop.create_future()
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
            del self._requests[cancelled]
            if view is not None and self._current.get(view) is cancelled:
                del self._current[view]

    @property
    def computing(self) -> bool:
        """Whether a thread is computing, even for a cancelled request."""
        return bool(self._computing)

    def close(self) -> None:
        """Cancel all computations and accept no more; waiting requests fail at once."""
        self._closed = True
        for cancelled, ending in list(self._requests.items()):
            cancelled.set()
            ending.get_loop().call_soon_threadsafe(_finish, ending)
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)


def _use_one_thread() -> None:
    """Limit OpenMP to one thread for the computations of this thread.

    On busy cores, OpenMP's threads wait for each other several times in each computation, which
    takes a row a hundred times as long as computing it. torch sets the number for all threads, and
    OpenMP for one, so the OpenMP that torch has loaded is called.
    """
    torch.get_num_threads()  # torch sets the number when a thread first needs it, and not again
    set_number = getattr(ctypes.CDLL(None), "omp_set_num_threads", None)
    if set_number is not None:
        set_number(1)


def _lower_priority() -> None:
    """Lower the priority of this thread, and of those that compute for it, on Linux alone."""
    if sys.platform == "linux":
        here = os.PRIO_PROCESS, get_native_id()
        os.setpriority(*here, os.getpriority(*here) + _NICE)


def _finish(ending: asyncio.Future[None]) -> None:
    if not ending.done():
        ending.set_result(None)
