"""What the site knows of an exhibit, as its folder has it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Exhibit", "read_exhibits"]

_FILE = "exhibit.json"


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
