"""Check what stands in a learner's file, in a process of its own with a time limit."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from regard.errors import Error
from regard_course._check import Verdict
from regard_course._exercise import exercise
from regard_course._mine import Result

__all__ = ["check_file", "check_own_file"]

_START = 120.0
"""How long the process may take beyond that, most of which is importing torch."""
_PRINTED = 4000
"""How many characters of what the file prints are kept."""


@dataclass(frozen=True)
class _Printed:
    """What a process has printed so far, its beginning alone."""

    parts: list[str]

    def read(self, stream: IO[str]) -> None:
        left = _PRINTED
        while text := stream.read(1024):
            if len(text) > left >= 0:
                self.parts.append(f"{text[:left]}\n… (the rest of what it prints is left out)\n")
            elif left >= 0:
                self.parts.append(text)
            left -= len(text)

    def text(self) -> str:
        return "".join(self.parts)


def check_file(number: str, path: Path, *, seconds: float = 10.0) -> Verdict:
    """Check what a file defines, in a process of its own, and print what that prints.

    At most its first 4000 characters are printed.

    Args:
        number: of the exercise, such as ``5.5``.
        path: a Python file that defines the exercise's function, or its answer as ``answer`` or
            ``answer_5_1``.
        seconds: how long the file may run.

    Raises:
        regard.Error: there is no such exercise or file, the file fails, does not end, or lacks what
            is checked, or that cannot be compared.

    Example:
        >>> from pathlib import Path
        >>> import regard
        >>> from regard_course import check_file
        >>> try:
        ...     check_file("1.3", Path("missing.py"))
        ... except regard.Error as error:
        ...     print(error)
        missing.py is not a file; name the Python file that holds your solution
    """
    exercise(number)
    content = _reply(number, path, seconds)
    return Verdict(right=content["right"], text=content["text"])


def check_own_file(path: Path, *, seconds: float = 60.0) -> list[Result]:
    """Check the reader's own file, which grows from page to page, in a process of its own.

    Args:
        path: the file, such as ``mine.py``.
        seconds: how long it may run.

    Returns:
        What is to be said of each stage, in the order of the pages.

    Raises:
        regard.Error: there is no such file, it fails or does not end, or it has no stage.

    Example:
        >>> from pathlib import Path
        >>> import regard
        >>> from regard_course import check_own_file
        >>> try:
        ...     check_own_file(Path("missing.py"))
        ... except regard.Error as error:
        ...     print(error)
        missing.py is not a file; name the Python file that holds your solution
    """
    return [Result(**one) for one in _reply("", path, seconds)["stages"]]


def _reply(number: str, path: Path, seconds: float) -> dict[str, Any]:
    """What the process answers."""
    if not path.is_file():
        raise Error(f"{path} is not a file; name the Python file that holds your solution")
    with TemporaryDirectory() as folder:
        reply, stuck = Path(folder, "reply.json"), Path(folder, "stuck.txt")
        arguments = [number, str(path.resolve()), str(seconds), str(reply), str(stuck)]
        # -u: what was printed before the end is not lost.
        command = [sys.executable, "-u", "-m", "regard_course._child", *arguments]
        printed, status = _run(command, seconds)
        sys.stdout.write(printed)
        if not reply.is_file():
            raise Error(_why_no_reply(path, seconds, stuck, status))
        content: dict[str, Any] = json.loads(reply.read_text("utf-8"))
    if "error" in content:
        raise Error(content["error"])
    return content


def _run(command: list[str], seconds: float) -> tuple[str, int | None]:
    """What a process prints, and its exit status; None where it had to be ended."""
    printed = _Printed([])
    with subprocess.Popen(  # noqa: S603  # this interpreter, with a module of this package
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    ) as process:
        assert process.stdout is not None, "it is a pipe"
        reader = threading.Thread(target=printed.read, args=(process.stdout,), daemon=True)
        reader.start()
        status = None
        try:
            status = process.wait(seconds + _START)
        except subprocess.TimeoutExpired:
            pass
        finally:
            process.kill()
        reader.join()
    return printed.text(), status


def _why_no_reply(path: Path, seconds: float, stuck: Path, status: int | None) -> str:
    trace = stuck.read_text("utf-8", errors="replace") if stuck.is_file() else ""
    if trace or status is None:
        line = re.search(rf'File "{re.escape(str(path.resolve()))}", line (\d+)', trace)
        where = f" in line {line[1]}" if line else ""
        return f"{path} was still running{where} after {seconds:g} seconds; make it end sooner"
    return (
        f"{path} ended the process (exit status {status}) before it was checked; "
        "take out what ends it, such as os._exit(), or use less memory"
    )
