"""Ctrl-C while a command imports its libraries."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_interrupts() -> Iterator[None]:
    """Let Ctrl-C inside the block end the process silently with status 130.

    Only for imports, which need no cleanup. A `KeyboardInterrupt` there would print a traceback
    through a library, or be caught by one, which then stays partly imported.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
