"""Atomic file writes: a reader never sees a partial file."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from stat import S_IMODE


def require_writable(folder: Path) -> None:
    """Create a folder if it is missing; raise `OSError` unless files can be created in it."""
    folder.mkdir(parents=True, exist_ok=True)
    with _errors_of(folder), tempfile.TemporaryFile(dir=folder):
        pass


def sync_folder(folder: Path) -> None:
    """Flush directory entries to disk where the system supports it."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    """Make an `OSError` inside the block name `path` instead of a temporary file."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error


@contextmanager
def as_os_error(path: Path) -> Iterator[None]:
    """Convert safetensors' own error for a failed write to `OSError`.

    Its message holds the error number of the system.
    """
    try:
        yield
    except Exception as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def as_any_new_file(path: Path) -> None:
    """Give a file the default permissions of a new one; safetensors makes its files private."""
    probe = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        probe.touch()
        path.chmod(S_IMODE(probe.stat().st_mode))
    finally:
        probe.unlink(missing_ok=True)


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically: write a temporary file beside it, then rename it.

    A reader sees the old content or the new. If the write fails, the old content is kept and the
    temporary file removed. A symbolic link is kept, and its target replaced.
    """
    replace_files({path: data})


def replace_files(contents: Mapping[Path, bytes]) -> None:
    """Replace files that belong together, each as `replace_file` does.

    Renames follow, in the order given, after all are written: a full disk leaves every old file.
    """
    targets = {Path(os.path.realpath(path)): data for path, data in contents.items()}
    written: dict[Path, Path] = {}
    try:
        for path, data in targets.items():
            temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
            with _errors_of(path), temporary.open("wb") as file:
                written[path] = temporary
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        for path, temporary in written.items():
            with _errors_of(path):
                temporary.replace(path)
    finally:
        for temporary in written.values():
            temporary.unlink(missing_ok=True)
