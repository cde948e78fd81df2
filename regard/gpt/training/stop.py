"""Signals that ask a run to stop, heard between its updates."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and what a system that shuts down or a job's time limit sends."""


class Terminated(KeyboardInterrupt):
    """A SIGTERM, which ends a run as Ctrl-C does; its process then ends with another status."""


class Stop:
    """A signal to stop, kept until the update that is under way is done.

    Attributes:
        asked: the signal that came; None before.
        at_once: whether another came, so that nothing is waited for.
    """

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None
        self.at_once = False

    def here(self, asked: signal.Signals | None) -> None:
        """Stop now, if that was asked for."""
        if asked is not None:
            raise Terminated if asked == signal.SIGTERM else KeyboardInterrupt


@contextmanager
def between_updates() -> Iterator[Stop]:
    """Let a signal wait for the end of an update, so that model and optimizer belong together.

    Sent again, it waits no longer, and what is under way is not kept. Only the main thread may
    say so; in others nothing changes.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(number: int, _frame: FrameType | None) -> None:
        stop.at_once = stop.asked is not None
        stop.asked = signal.Signals(number)
        if stop.at_once:
            stop.here(stop.asked)

    usual = {signal.default_int_handler, signal.SIG_DFL}  # else somebody else looks after it
    before = {number: signal.getsignal(number) for number in SIGNALS}
    ours = [number for number in SIGNALS if before[number] in usual]
    for number in ours:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        for number in ours:
            signal.signal(number, before[number])
