"""The front page's live page: the model that comes with the package, in one file of HTML."""

from __future__ import annotations

from pathlib import Path

import regard
from regard.gpt import load

__all__ = ["write_live"]


def write_live(folder: Path) -> None:
    """Write ``live.html``; the front page shows it if it exists."""
    folder.mkdir(parents=True, exist_ok=True)
    model, tokenizer = load()
    title = "the model that comes with regard"
    regard.report(model, folder / "live.html", title=title, tokenizer=tokenizer, live=True)
