"""What every exhibit needs: its description, its progress, and pictures of weights."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

__all__ = ["DECADES", "HIGHEST", "Exhibit", "Progress", "ink", "read_exhibits", "write_picture"]

_FILE, _PROGRESS = "exhibit.json", "progress.json"
HIGHEST, DECADES = -1, 5
"""The logarithmic scale of pictures: full ink from 0.1 on, none five decades below."""
_SHADES = 32


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """One thing to look at.

    Args:
        name: of its folder and page.
        title: what is seen, in a few words.
        text: how to read it, and what it was made from, in Markdown.
        frame: the address of a page that is shown in it, from the site's folder.
        viewer: the script that shows it instead, which takes ``data``.
        data: for the viewer.
        seconds: of processor time that making it took.
    """

    name: str
    title: str
    text: str
    frame: str | None = None
    viewer: str | None = None
    data: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def write(self, folder: Path) -> None:
        """Write it into its folder, which says that the folder is complete."""
        (folder / _FILE).write_text(json.dumps(asdict(self), indent=1), "utf-8")


def read_exhibits(folder: Path) -> list[Exhibit]:
    """Every complete exhibit of a gallery, in the order in which they were made."""
    files = list(folder.glob(f"*/{_FILE}"))
    exhibits = [Exhibit(**json.loads(path.read_text("utf-8"))) for path in files]
    return sorted(exhibits, key=lambda one: one.data.get("order", 0))


class Progress:
    """What was said of an exhibit, and the processor time of all the runs that made it.

    The time is kept in the exhibit's folder whenever something is said, so that a run that was
    killed counts for what it did.

    Args:
        folder: of the exhibit.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / _PROGRESS
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


def ink(weights: Tensor) -> Tensor:
    """Where weights lie on the logarithmic scale, 0 … 1."""
    return ((weights.log10() - HIGHEST) / DECADES + 1).clamp(0, 1).nan_to_num(0)


def write_picture(path: Path, opacity: Tensor) -> None:
    """Write a picture as PNG: the accent of the page's light colours in `_SHADES` opacities.

    Args:
        path: the file.
        opacity: (rows, columns), 0 … 1.
    """
    shades = (opacity * (_SHADES - 1)).round().numpy().astype(np.uint8)
    image = Image.frombytes("P", shades.shape[::-1], shades.tobytes())
    image.putpalette([179, 67, 30] * _SHADES)
    image.save(path, transparency=bytes(255 * shade // (_SHADES - 1) for shade in range(_SHADES)))
