"""Build a release a second time, from a fresh clone elsewhere, and compare it byte by byte.

``python tools/rebuild.py FOLDER [TAG …]``, the folder being that of the first build. What is not
committed is not in the clone, so that a file which was never added shows up here too.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from driver import ROOT


def main(folder: str, *tags: str) -> int:
    """Print what differs; the exit status is 1 where something does."""
    first = Path(folder)
    with tempfile.TemporaryDirectory() as scratch:
        clone, second = Path(scratch) / "clone", Path(scratch) / "dist"
        git = ["git", "clone", "--quiet", str(ROOT), str(clone)]
        subprocess.run(git, check=True)
        command = [sys.executable, str(clone / "tools/wheels.py"), str(second), *tags]
        if subprocess.run(command, cwd=clone, check=False).returncode:
            return 1
        built = sorted(second.iterdir())
        differing = [one.name for one in built if not _same(one, first / one.name)]
    for name in differing:
        print(f"{name} differs from the first build, or is missing there", file=sys.stderr)
    print(f"{len(built) - len(differing)} of {len(built)} archives are the same, to the last byte")
    return 1 if differing else 0


def _same(one: Path, other: Path) -> bool:
    return other.is_file() and one.read_bytes() == other.read_bytes()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
