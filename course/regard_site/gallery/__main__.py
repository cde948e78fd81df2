"""Make the exhibits that are missing: ``python -m regard_site.gallery build/gallery``.

Each is kept once it is made, and a run that was killed goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from regard_site.gallery.atlas import atlas
from regard_site.gallery.exhibit import Exhibit, Progress
from regard_site.gallery.forming import forming
from regard_site.gallery.long_map import long_map
from regard_site.gallery.pages import copying, pronoun, sinks

EXHIBITS: dict[str, Callable[[Progress], Exhibit | None]] = {
    "induction": copying,
    "pronoun": pronoun,
    "forming": forming,
    "sinks": sinks,
    "long-map": long_map,
    "atlas": atlas,
}


def main(arguments: list[str]) -> None:
    """Make each exhibit whose folder is not complete, and say how long it took."""
    parser = argparse.ArgumentParser(prog="python -m regard_site.gallery", description=__doc__)
    parser.add_argument("folder", type=Path, help="where exhibits are kept")
    folder = parser.parse_args(arguments).folder
    for order, (name, make) in enumerate(EXHIBITS.items()):
        place = folder / name
        if (place / "exhibit.json").exists():
            print(f"{place}: made before")
            continue
        place.mkdir(parents=True, exist_ok=True)
        progress = Progress(place)
        progress.say("begins")
        exhibit = make(progress)
        if exhibit is None:
            continue
        seconds = progress.seconds
        replace(exhibit, seconds=seconds, data=exhibit.data | {"order": order}).write(place)
        progress.say("made")


if __name__ == "__main__":
    main(sys.argv[1:])
