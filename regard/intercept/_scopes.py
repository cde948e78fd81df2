"""The scope of a ``with`` block: the thread and context whose calls belong to it.

The tasks of an event loop share a thread, so one may make calls while another waits inside a block.
A block belongs to the context (`contextvars`) in which it began, and to all tasks started there
before it ends, since tasks copy the context in which they are created.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from regard.intercept._recomputation import (
    Moment,
    is_on_thread_of_autograd,
    now,
    was_made_before,
)


@dataclass(eq=False)
class Scope:
    """The scope of a block that begins now on this thread."""

    thread: int = field(default_factory=threading.get_ident)
    begin: Moment = field(default_factory=now)
    is_open: bool = True

    def holds(self) -> bool:
        """Return whether the current call, or the call that is being recomputed, is in the scope.

        Autograd recomputes checkpoints on a thread of its own per device.
        """
        if threading.get_ident() == self.thread:
            is_here = self in _scopes.get()
        else:
            is_here = is_on_thread_of_autograd()
        return is_here and not was_made_before(self.begin)


_scopes: ContextVar[tuple[Scope, ...]] = ContextVar("regard_scopes", default=())
"""Scopes that the current context began or inherited; some may have ended elsewhere."""


@contextmanager
def open_scope() -> Iterator[Scope]:
    """Open a scope in this context for the duration of a ``with`` block."""
    scope = Scope()
    _scopes.set((*_open_scopes(), scope))
    try:
        yield scope
    finally:
        scope.is_open = False
        _scopes.set(_open_scopes())  # may run in another context than the one it began in


def _open_scopes() -> tuple[Scope, ...]:
    return tuple(scope for scope in _scopes.get() if scope.is_open)
