"""Writing files so that a reader never meets half of one."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from stat import S_IMODE


def require_writable(folder: Path) -> None:
    """Make a folder if need be, and raise `OSError` unless files can be made in it."""
    folder.mkdir(parents=True, exist_ok=True)
    with _errors_of(folder), tempfile.TemporaryFile(dir=folder):
        pass


def sync_folder(folder: Path) -> None:
    """Have the names in a folder survive a loss of power, where the system can promise it."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    """Have an `OSError` of the block name `path` in place of a temporary file."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error


@contextmanager
def as_os_error(path: Path) -> Iterator[None]:
    """Raise `OSError` for a write that the system refuses inside the block.

    safetensors has an error of its own for that, whose text holds the system's number.
    """
    try:
        yield
    except Exception as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def as_any_new_file(path: Path) -> None:
    """Give a file the permissions that a new one gets here; safetensors makes its own private."""
    probe = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        probe.touch()
        path.chmod(S_IMODE(probe.stat().st_mode))
    finally:
        probe.unlink(missing_ok=True)


def replace_file(path: Path, data: bytes) -> None:
    """Write `data` beside `path` under a temporary name, then rename it onto `path`.

    Whoever opens `path` finds the old content or the new, whole; where writing fails, the old
    content stays and the temporary file goes. A symbolic link stays, and its target is replaced.
    """
    replace_files({path: data})


def replace_files(contents: Mapping[Path, bytes]) -> None:
    """Replace files that belong together, each as `replace_file` does.

    None is renamed before all are written, so that a full disk leaves every old one; the renames
    follow in the order given.
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
