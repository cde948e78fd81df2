"""A `Monitor`'s numbers in Trackio."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["TrackioWriter"]


class TrackioWriter:
    """A writer of a `regard.Monitor` that logs to a run of Trackio (the extra ``trackers``).

    Args:
        run: the run of ``trackio.init(...)``; without ``space_id`` it stays on this machine.

    Example:
        >>> from regard.integrations.trackio import TrackioWriter
        >>> from types import SimpleNamespace
        >>> run = SimpleNamespace(log=lambda numbers, step: print(step, numbers))
        >>> TrackioWriter(run)(100, {"attention/0/entropy": 1.5})  # run = trackio.init("attention")
        100 {'attention/0/entropy': 1.5}
    """

    def __init__(self, run: Any) -> None:
        if not callable(getattr(run, "log", None)):
            raise TypeError(f"run must be what trackio.init() gives, but is {type(run).__name__}")
        self._run = run

    def __call__(self, update: int, scalars: Mapping[str, float], /) -> None:
        """Log the numbers of an update."""
        self._run.log(dict(scalars), step=update)
