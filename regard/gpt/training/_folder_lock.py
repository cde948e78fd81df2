"""A folder that one process at a time writes to."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Self

from filelock import FileLock, Timeout


class FolderLock:
    """Keeps other processes out of a folder until it is released or this process ends.

    Args:
        lock: the file to lock; it exists only while the lock is held.
    """

    def __init__(self, lock: Path) -> None:
        self._path = lock
        self._lock = FileLock(lock)

    def acquire(self) -> bool:
        """Acquire the lock without waiting; False where another process holds it.

        Raises:
            OSError: the file can't be written.
        """
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            return False
        return True

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._lock.is_locked:
            with suppress(OSError):  # not every system removes an open file
                self._path.unlink()
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
