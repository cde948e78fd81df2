"""Configure and build the kernels with the driver that tries them on random problems."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "tests/native/driver"
LEFT_OUT = 77  # the exit status of a check that lacks a tool


def configure(name: str, *options: str) -> Path:
    """Make a build folder with options for CMake; exit if that fails."""
    folder = ROOT / "build" / name
    _run("cmake", "-G", "Ninja", "-S", str(SOURCES), "-B", str(folder), *options)
    return folder


def build(name: str, *options: str) -> Path:
    """Build in a folder of its own, with options for CMake; exit if that fails."""
    folder = configure(name, *options)
    # Not the two more than there are processors that Ninja would add: each takes a gigabyte or two.
    _run("ninja", "-C", str(folder), "-j", str(os.cpu_count() or 1))
    return folder / "driver"


def run(name: str, *command: str) -> int:
    """Print what a command writes, after a name, as one: others may print beside it."""
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    print(f"{name}: {result.stdout}", end="", flush=True)
    return result.returncode


def beside_python(program: str) -> str:
    """Find a program beside Python first: the environment brings its own."""
    beside = Path(sys.executable).with_name(program)
    return str(beside) if beside.exists() else program


def _run(program: str, *arguments: str) -> None:
    command = [beside_python(program), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(f"{result.stdout}\n{result.stderr}")
