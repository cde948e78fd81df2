"""Build the kernels with the driver that tries them on random problems."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def build(name: str, *options: str) -> Path:
    """Build in a folder of its own, with options for CMake; exit if that fails."""
    folder = ROOT / "build" / name
    cmake = [
        "cmake", "-G", "Ninja", "-S", str(ROOT / "tests/native/driver"), "-B", str(folder), *options
    ]  # fmt: skip
    for command in (cmake, ["ninja", "-C", str(folder)]):
        done = subprocess.run(_here(command), capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{done.stdout}\n{done.stderr}")
    return folder / "driver"


def _here(command: list[str]) -> list[str]:
    """Find a program beside Python first: the environment brings its own."""
    beside = Path(sys.executable).with_name(command[0])
    return [str(beside) if beside.exists() else command[0], *command[1:]]
