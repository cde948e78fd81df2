"""Write the site: ``python -m regard_site build/site``."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import regard
from regard.gpt import load
from regard_site.build import build

_GALLERY = Path("build/gallery")
"""What ``python -m regard_site.gallery`` made, if it did."""
_NOTEBOOKS = Path("build/notebooks")
"""What ``make notebooks`` made, if it did."""
_REAL = Path("build/live/smollm2")
"""The page of a real model for a host of files, as ``regard report --live`` wrote it, if it did."""


def main(arguments: list[str]) -> None:
    """Build the site and say how large it is."""
    parser = argparse.ArgumentParser(prog="python -m regard_site", description=__doc__)
    parser.add_argument("folder", type=Path, help="where it is written")
    folder = parser.parse_args(arguments).folder
    start = time.perf_counter()
    _write_live(folder)
    build(folder, *(made if made.is_dir() else None for made in (_GALLERY, _NOTEBOOKS, _REAL)))
    files = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files) / 1e6
    seconds = time.perf_counter() - start
    print(f"{folder / 'index.html'}: {len(files)} files, {size:.1f} MB, {seconds:.1f} s")


def _write_live(folder: Path) -> None:
    """Write the model that comes with the package as one file, which the front page shows."""
    folder.mkdir(parents=True, exist_ok=True)
    model, tokenizer = load()
    title = "the model that comes with regard"
    regard.report(model, folder / "live.html", title=title, tokenizer=tokenizer, live=True)


if __name__ == "__main__":
    main(sys.argv[1:])
