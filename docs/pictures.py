"""Draw the pictures of the pages, from the numbers that the pages compute.

``python docs/pictures.py`` writes them all, ``python docs/pictures.py docs/pictures page_05`` those
of page 5. What it shows is drawn in docs/figures/page_05.py, whose `PICTURES` names each picture:
``causal`` is docs/pictures/causal.svg, drawn from the names that the code of 05-….md leaves behind.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import matplotlib as mpl
from dark import with_dark_colours
from drawing import STYLE
from pages import FOLDER, run

_DRAWN = FOLDER / "figures"


def draw(folder: Path, pages: str = "page_*") -> None:
    """Write the pictures of all pages, or of some: ``draw(folder, "page_05")``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, svg in _pictures(pages):
        save(folder / f"{name}.svg", svg)


def _pictures(pages: str) -> Iterator[tuple[str, str]]:
    """The name of each picture, and what is in its file."""
    for module in sorted(_DRAWN.glob(f"{pages}.py")):
        (page,) = FOLDER.glob(f"{module.stem.removeprefix('page_')}-*.md")
        pictures = import_module(f"figures.{module.stem}").PICTURES
        for name, picture in pictures.items():
            written = io.StringIO()
            with mpl.rc_context(STYLE):
                picture(run(page)).savefig(written, format="svg", metadata={"Date": None})
            yield name, with_dark_colours(written.getvalue())


def save(path: Path, text: str) -> None:
    """Write a file under another name first, so that it is never half there."""
    unfinished = path.with_suffix(".part")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER / "pictures", *sys.argv[2:3])
