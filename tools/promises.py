"""Count what holds the promises of docs/promises.md, and write the counts into that page.

``python tools/promises.py`` counts what the repository says of itself: mutants, tests of drawn
problems, readers that are fuzzed. With ``--collect`` it also asks pytest for the tests of each room
and the library for the instruction sets of this processor, and writes down the day, in minutes.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "promises.md"
COUNTED = "<!-- Counted: tools/promises.py writes it. -->", "<!-- End of the counts. -->"
COLLECTED = (
    "<!-- Collected: by tools/promises.py --collect. -->",
    "<!-- End of what ran. -->",
)


def counted() -> str:
    """The table of what can be counted without running anything."""
    mutants = tomllib.loads((ROOT / "tools" / "mutants.toml").read_text("utf-8"))
    rooms = {room: len(of_room) for room, of_room in sorted(mutants.items())}
    drawn = [test for file in _tests() for test in _drawn(file)]
    by_oracle = sum("cases(" in test for test in drawn)
    profiles = dict(re.findall(r'"(\w+)": (\d+)', (ROOT / "conftest.py").read_text("utf-8")))
    seeds = (ROOT / "tools" / "fuzz_seeds.py").read_text("utf-8")
    readers = re.findall(r'^    "(\w+)": Reader\(', seeds, flags=re.MULTILINE)
    rows = {
        "files of tests": str(len([*_tests()])),
        "tests whose problems are drawn (hypothesis)": str(len(drawn)),
        "of these, over problems that the oracle computes too": str(by_oracle),
        "problems that each draws, if it does not say otherwise": " in `make test`, ".join(
            (profiles["regard"], f"{profiles['thorough']} in `make thorough`")
        ),
        "readers of files that are fuzzed": f"{len(readers)}: {', '.join(readers)}",
        "mutants that a test is to notice": str(sum(rooms.values())),
        "of these in each room": ", ".join(f"{room} {number}" for room, number in rooms.items()),
    }
    return _table(("what", "how many"), rows)


def collected() -> str:
    """The table of what pytest collects and this processor runs; of today."""
    from regard.backends.native import library

    command = [sys.executable, "-m", "pytest", "--collect-only", "-q"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return table_of(done.stdout, library.describe())


def table_of(listed: str, native: object) -> str:
    """The table of what pytest has listed and what the library says of itself."""
    rooms = Counter(_room(line) for line in listed.splitlines() if "::" in line)
    run, left_out = _total(listed)
    built, supported = (getattr(native, name, ()) for name in ("built", "supported"))
    rows = {
        "tests that `make test` runs": f"{run:,}",
        "tests that only `make thorough` runs": f"{left_out:,}",
        "instruction sets that are built": ", ".join(built) or "none",
        "of these, run by this processor": ", ".join(s for s in built if s in supported) or "none",
        **{f"tests of `{room}`": f"{number:,}" for room, number in sorted(rooms.items())},
    }
    return _table(("what", f"on {datetime.now(UTC).date()}"), rows)


def _total(listed: str) -> tuple[int, int]:
    *_, last = listed.strip().splitlines()
    found = re.search(r"(\d+)/(\d+) tests collected", last)
    assert found is not None, last
    return int(found[1]), int(found[2]) - int(found[1])


def _room(line: str) -> str:
    parts = line.partition("::")[0].split("/")
    return "/".join(parts[:2]) if parts[0] == "tests" else f"examples in {parts[0]}/"


def _tests() -> Iterator[Path]:
    for folder in ("tests", "experiments/vllm/tests"):
        yield from sorted((ROOT / folder).rglob("test_*.py"))


def _drawn(file: Path) -> Iterator[str]:
    """What each test of a file that hypothesis calls is given, as it is written."""
    text = file.read_text("utf-8")
    if "given(" not in text:  # to parse them all takes seconds
        return
    for node in ast.walk(ast.parse(text)):
        for one in getattr(node, "decorator_list", ()):
            if ast.unparse(one).startswith("given("):
                yield ast.unparse(one)


def _table(head: tuple[str, str], rows: dict[str, str]) -> str:
    lines = [f"| {head[0]} | {head[1]} |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {value} |" for name, value in rows.items())])


def written(text: str, marks: tuple[str, str], table: str) -> str:
    """The page with a table between two marks."""
    before, rest = text.split(marks[0])
    return f"{before}{marks[0]}\n\n{table}\n\n{marks[1]}{rest.split(marks[1])[1]}"


if __name__ == "__main__":
    page = written(PAGE.read_text("utf-8"), COUNTED, counted())
    if sys.argv[1:] == ["--collect"]:
        page = written(page, COLLECTED, collected())
    PAGE.write_text(page, encoding="utf-8")
