"""How a command imports its libraries: not interrupted by Ctrl-C, nor by searches for garbage."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """Let Ctrl-C inside the block end the process silently with status 130, and collect no garbage.

    Only for imports, which need no cleanup. A `KeyboardInterrupt` there would print a traceback
    through a library, or be caught by one, which then stays partly imported.

    What torch consists of stays to the end. Each search of it for garbage takes a tenth of a
    second, and a command that ends after a second would make several, so it is left out of them.
    """
    with _quiet_interrupts(), _no_searches():
        yield


@contextmanager
def _quiet_interrupts() -> Iterator[None]:
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def _no_searches() -> Iterator[None]:
    """Collect no garbage meanwhile; if torch was imported here, freeze what there is."""
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if "torch" in sys.modules:
            gc.freeze()
        gc.enable()
