"""A folder that one process at a time writes to."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Self

from filelock import FileLock, Timeout

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType


class FolderLock:
    """Keeps other processes out of a folder until this one has done with it, or has ended.

    Args:
        lock: the file to lock; it is there only while something is held.
    """

    def __init__(self, lock: Path) -> None:
        self._path = lock
        self._lock = FileLock(lock)

    def take(self) -> bool:
        """Whether nobody else has it; if so, this process has from now on.

        Raises:
            OSError: the lock can't be written.
        """
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            return False
        return True

    def release(self) -> None:
        """Give it back, if it was taken."""
        if self._lock.is_locked:
            with suppress(OSError):  # where an open file can't be removed, it stays
                self._path.unlink()
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
