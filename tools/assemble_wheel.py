"""Make the sdist, the wheel without kernels, and out of it one with a library.

What they write rests on the source alone: the time in every archive is SOURCE_DATE_EPOCH, or else
that of the last commit.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from driver import ROOT

__all__ = ["add_library", "build_pure"]


def build_pure(folder: Path) -> Path:
    """Make the sdist and, out of it, a wheel of everything but the kernels; returns the wheel."""
    os.environ.setdefault("SOURCE_DATE_EPOCH", _time_of_last_commit())
    options = ["--no-isolation", "-Cwheel.cmake=false", "--outdir", str(folder)]
    _run(sys.executable, "-m", "build", *options, str(ROOT))
    (wheel,) = folder.glob("*.whl")
    return wheel


def add_library(pure: Path, library: Path, tag: str, wheels: Path) -> Path:
    """The wheel with a library and the platform's tag."""
    with tempfile.TemporaryDirectory() as scratch:
        _run(sys.executable, "-m", "wheel", "unpack", "--dest", scratch, str(pure))
        (folder,) = Path(scratch).iterdir()
        inside = folder / "regard/backends/native" / library.name
        shutil.copyfile(library, inside)
        (description,) = folder.glob("*.dist-info/WHEEL")
        text = description.read_text(encoding="utf-8")
        text = text.replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")
        description.write_text(text.replace("py3-none-any", f"py3-none-{tag}"), encoding="utf-8")
        for path in folder.rglob("*"):  # an archive keeps permissions, which differ among systems
            path.chmod(0o755 if path.is_dir() or path == inside else 0o644)
        _run(sys.executable, "-m", "wheel", "pack", "--dest-dir", str(wheels), str(folder))
    (wheel,) = wheels.glob(f"*-{tag}.whl")
    return wheel


def _time_of_last_commit() -> str:
    """In seconds, as SOURCE_DATE_EPOCH has it."""
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit("outside a checkout of git, set SOURCE_DATE_EPOCH: the time that archives state")
    return result.stdout.strip()


def _run(*command: str) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(f"{ended.stdout}\n{ended.stderr}")
