"""Check one room: its style, its types, and the tests that judge it, in about a minute.

``python tools/check.py record`` runs ruff, mypy and pytest beside each other on what `ROOMS` names;
``make check ROOM=record`` installs first. Tests that are marked slow or thorough are left out.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Room:
    """What is checked: folders and files of code, and the tests that judge them."""

    code: tuple[str, ...]
    tests: tuple[str, ...]


def _core(code: str, *names: str) -> Room:
    """A room of the core, judged by files of tests/core."""
    return Room((f"regard/{code}",), tuple(f"tests/core/test_{name}.py" for name in names))


def _own(name: str) -> Room:
    """A room with a folder of tests of its own."""
    return Room((f"regard/{name}",), (f"tests/{name}",))


ROOMS = {
    "masks": _core("masks", "mask", "hide", "keep_mask", "masked_values"),
    "inputs": _core("inputs", "errors", "dropout", "autocast", "meta", "edge_sizes"),
    "steps": _core("steps.py", "explain", "captions", "definitions"),
    "backends": _core("backends", "backends", "choice", "rounding", "large_scores"),
    "pattern": _core("pattern", "pattern", "readouts", "attention_read"),
    "readouts": _core("readouts.py", "readouts", "definitions"),
    "attention": _core("attention.py", "sdpa", "gradients", "transforms", "batch_independence"),
    "intercept": _own("intercept"),
    "record": _own("record"),
    "intervene": _own("intervene"),
    "conformance": _own("conformance"),
    "lens": _own("lens"),
    "nn": _own("nn"),
    "gpt": _own("gpt"),
    "models": _own("models"),
    "view": _own("view"),
    "page": _own("page"),
    "integrations": _own("integrations"),
    "cli": _own("cli"),
    "native": Room(("src/native",), ("tests/native",)),
    "course": Room(("course",), ("tests/course", "tests/website")),
    "experiments": Room(("experiments/regard_experiments",), ("tests/experiments",)),
}


def commands(room: Room) -> list[list[str]]:
    """The commands that check a room, which may run beside each other."""
    python = [*room.code] if room.code != ("src/native",) else []
    style = [*python, *room.tests]
    tool = [sys.executable, "-m"]
    types = [[*tool, "mypy", "--cache-dir=.mypy_cache/check", *python]] if python else []
    return [
        [*tool, "ruff", "check", *style],
        [*tool, "ruff", "format", "--check", *style],
        *types,
        [*tool, "pytest", "-q", "-n", "auto", "-m", "not thorough and not slow", *room.tests],
    ]


def main(name: str) -> int:
    """Run the commands of a room, and print what each said."""
    if name not in ROOMS:
        sys.stderr.write(f"ROOM is {name!r}, but must be one of {', '.join(ROOMS)}\n")
        return 2
    running = [
        subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for command in commands(ROOMS[name])
    ]
    for process in running:
        output, _ = process.communicate()
        sys.stdout.write(output)
    return int(any(process.returncode for process in running))


if __name__ == "__main__":
    sys.exit(main(*(sys.argv[1:] or [""])))
