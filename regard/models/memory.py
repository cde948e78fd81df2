"""The memory that is free, for models and texts that may not fit."""

from __future__ import annotations

from pathlib import Path

__all__ = ["free_memory"]

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def free_memory() -> int | None:
    """Return the bytes of main memory that can still be used; None where the system does not say.

    On Linux that is the least of what the system and the process's control group have left.
    """
    try:
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text("ascii").splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    try:
        most = int((_CGROUP / "memory.max").read_text("ascii"))
        used = int((_CGROUP / "memory.current").read_text("ascii"))
    except (OSError, ValueError):  # no control group, or one without a limit
        return free
    return min(free, most - used)
