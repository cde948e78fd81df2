"""Signals that stop a training run between two updates."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and the signal of a system's shutdown or a job's time limit."""


class Terminated(KeyboardInterrupt):
    """A SIGTERM, which ends a training run like Ctrl-C, with another exit status."""


class StopSignal:
    """A signal to stop that waits for the end of the current update.

    Attributes:
        received: the signal; None before one arrives.
        repeated: whether a second one arrived, which stops immediately.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.repeated = False


def interrupt(received: signal.Signals | None) -> None:
    """Raise the exception of a signal; None raises nothing.

    Raises:
        KeyboardInterrupt: for SIGINT.
        Terminated: for SIGTERM.
    """
    if received is not None:
        raise Terminated if received == signal.SIGTERM else KeyboardInterrupt


@contextmanager
def deferred_signals() -> Iterator[StopSignal]:
    """Defer signals inside the block, so that model and optimizer are of the same update.

    A second signal raises immediately. Outside the main thread, where Python can't handle signals,
    this does nothing.
    """
    stop = StopSignal()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        stop.repeated = stop.received is not None
        stop.received = signal.Signals(number)
        if stop.repeated:
            interrupt(stop.received)

    defaults = {signal.default_int_handler, signal.SIG_DFL}  # another handler is left in place
    before = {number: signal.getsignal(number) for number in SIGNALS}
    handled = [number for number in SIGNALS if before[number] in defaults]
    for number in handled:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number in handled:
            signal.signal(number, before[number])
