"""Which calls belong to a ``with`` block: those of its thread, in its own flow of control.

The tasks of an event loop share a thread, so that one may make calls while another one waits inside
a block. A block belongs to the context (`contextvars`) that it began in, and to what is started
from there before it ends: tasks copy the context that they are made in.
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
class Block:
    """A block, which begins now on this thread."""

    thread: int = field(default_factory=threading.get_ident)
    begin: Moment = field(default_factory=now)
    is_open: bool = True

    def holds(self) -> bool:
        """Whether the call that is being made, or was before it is computed again, belongs to it.

        Checkpoints of a device are computed again on autograd's thread for it.
        """
        if threading.get_ident() == self.thread:
            is_here = self in _blocks.get()
        else:
            is_here = is_on_thread_of_autograd()
        return is_here and not was_made_before(self.begin)


_blocks: ContextVar[tuple[Block, ...]] = ContextVar("regard_blocks", default=())
"""Those that the current context began or inherited, and some that have ended elsewhere."""


@contextmanager
def open_block() -> Iterator[Block]:
    """Begin a block in this context, and end it."""
    block = Block()
    _blocks.set((*_open_blocks(), block))
    try:
        yield block
    finally:
        block.is_open = False
        _blocks.set(_open_blocks())  # the context may be another one than at the beginning


def _open_blocks() -> tuple[Block, ...]:
    return tuple(block for block in _blocks.get() if block.is_open)
