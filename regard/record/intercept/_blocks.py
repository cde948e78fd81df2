"""Which calls belong to a ``with`` block."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from regard.record.intercept._recomputation import is_backward, now, was_made_before


@dataclass(frozen=True, eq=False)
class Block:
    """A block, which begins now on this thread."""

    thread: int = field(default_factory=threading.get_ident)
    begin: int = field(default_factory=now)

    def holds(self) -> bool:
        """Whether the call that is being made, or was before it is computed again, belongs to it.

        Autograd has a thread for each device, on which checkpoints are computed again.
        """
        if was_made_before(self.begin):
            return False
        if threading.get_ident() == self.thread:
            return True
        # What Python did not start.
        return is_backward() and isinstance(threading.current_thread(), threading._DummyThread)  # noqa: SLF001 - it has no public name
