"""How far an exhibit is: said in lines, with the processor time that it has taken so far."""

from __future__ import annotations

import json
import time
from pathlib import Path

__all__ = ["Progress"]

_FILE = "progress.json"


class Progress:
    """What was said of an exhibit, and the processor time of all the runs that made it.

    The time is kept in the exhibit's folder whenever something is said, so that a run that was
    killed counts for what it did.

    Args:
        folder: of the exhibit.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / _FILE
        known = json.loads(self._file.read_text("utf-8")) if self._file.exists() else {}
        self._before = known.get("seconds", 0.0) - time.process_time()

    @property
    def seconds(self) -> float:
        """Processor time so far, of all threads."""
        return self._before + time.process_time()

    def say(self, what: str) -> None:
        """Print a line, and keep the time."""
        print(f"{self.folder}: {what}; {self.seconds:.0f} s of processor time", flush=True)
        made = self._file.with_suffix(".tmp")
        made.write_text(json.dumps({"seconds": round(self.seconds, 1)}), "utf-8")
        made.replace(self._file)
