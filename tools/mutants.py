"""Break the code in small ways, one at a time, and see whether the tests of its room notice.

``python tools/mutants.py [ROOM…]`` tries the mutants of mutants.toml on a copy of what git knows in
build/mutants, prints each that survives, and ends with status 1 if any does. The tests have to pass
without a mutant first. Those of the kernels in C++ are tried by the driver that the sanitizers run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import wasm
from driver import LEFT_OUT
from install import MEMBERS

ROOT = Path(__file__).parents[1]
COPY = ROOT / "build" / "mutants"
LIBRARY = Path("regard/backends/native")

# The editable installation imports the package from where it is installed; here the copy is meant.
SITE = """
import sys

sys.meta_path[:] = [one for one in sys.meta_path if "ScikitBuild" not in type(one).__name__]
"""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A change of one line.

    Args:
        room: the part of the project that it breaks.
        file: the file, from the root.
        old: what stands there, exactly once.
        new: what takes its place.
        tests: what is to notice: folders and files of tests; "driver" for the kernels' driver.
    """

    room: str
    file: str
    old: str
    new: str
    tests: str


def mutants() -> list[Mutant]:
    """All of mutants.toml."""
    written = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    return [Mutant(room=room, **one) for room, some in written.items() for one in some]


def main(*rooms: str) -> int:
    """Try those of some rooms, or all; the exit status."""
    tried = [one for one in mutants() if not rooms or one.room in rooms]
    _copy()
    for tests in dict.fromkeys(one.tests for one in tried):
        if not _passes(tests):
            sys.exit(f"without any mutant this fails, so that nothing could be told by it: {tests}")
    survived = []
    for number, one in enumerate(tried, start=1):
        print(f"{number}/{len(tried)} {one.room}: {one.file}", end=" … ", flush=True)
        is_killed = _is_killed(one)
        print("killed" if is_killed else "SURVIVED", flush=True)
        if not is_killed:
            survived.append(one)
    for room, count in Counter(one.room for one in tried).items():
        alive = sum(one.room == room for one in survived)
        print(f"{room:12} {count - alive} of {count} killed")
    return 1 if survived else 0


def _copy() -> None:
    """The files that git knows, with the kernels that were built for this checkout."""
    shutil.rmtree(COPY, ignore_errors=True)
    COPY.mkdir(parents=True)
    git = shutil.which("git") or sys.exit("git is missing: it lists the files to copy")
    subprocess.run([git, "checkout-index", "--all", f"--prefix={COPY}/"], cwd=ROOT, check=True)
    for library in (ROOT / "build/editable/native").glob("*regard.*"):
        shutil.copy(library, COPY / LIBRARY)
    for module in wasm.MODULES:
        shutil.copy(module, COPY / module.relative_to(ROOT))
    (COPY / "site").mkdir()
    (COPY / "site/sitecustomize.py").write_text(SITE, "utf-8")


def _is_killed(mutant: Mutant) -> bool:
    """Whether what is to notice a mutant fails with it."""
    file = COPY / mutant.file
    text = file.read_text("utf-8")
    if text.count(mutant.old) != 1:
        sys.exit(f"{mutant.file} has not once: {mutant.old}")
    file.write_text(text.replace(mutant.old, mutant.new), "utf-8")
    try:
        return not _passes(mutant.tests)
    finally:
        file.write_text(text, "utf-8")


def _passes(tests: str) -> bool:
    command = [sys.executable, "tools/sanitize.py", "thread", "best", "80", "4"]
    if tests != "driver":
        command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", *tests.split()]
    folders = [COPY / "site", COPY, *(COPY / name for name in MEMBERS)]
    places = os.pathsep.join(map(str, folders))
    environment = {**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        command, cwd=COPY, env=environment, capture_output=True, text=True, check=False
    )
    ran = result.returncode != LEFT_OUT if tests == "driver" else result.returncode in (0, 1)
    if not ran:
        sys.exit(f"the tests did not run:\n{result.stdout}\n{result.stderr}")
    return result.returncode == 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
