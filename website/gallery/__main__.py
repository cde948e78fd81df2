"""Make the exhibits that are missing: ``python -m website.gallery build/gallery``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from website.gallery.exhibit import Exhibit
from website.gallery.forming import forming
from website.gallery.long_map import long_map
from website.gallery.sinks import sinks
from website.gallery.texts import copying, pronoun

EXHIBITS: dict[str, Callable[[Path], Exhibit]] = {
    "induction": copying,
    "pronoun": pronoun,
    "forming": forming,
    "sinks": sinks,
    "long-map": long_map,
}


def main(arguments: list[str]) -> None:
    """Make each exhibit whose folder is not complete, and say how long it took."""
    parser = argparse.ArgumentParser(prog="python -m website.gallery", description=__doc__)
    parser.add_argument("folder", type=Path, help="where exhibits are kept")
    folder = parser.parse_args(arguments).folder
    for order, (name, make) in enumerate(EXHIBITS.items()):
        place = folder / name
        if (place / "exhibit.json").exists():
            continue
        place.mkdir(parents=True, exist_ok=True)
        start = time.perf_counter()
        exhibit = make(place)
        seconds = time.perf_counter() - start
        replace(exhibit, seconds=seconds, data=exhibit.data | {"order": order}).write(place)
        print(f"{place}: {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
