"""The text of a command: from an argument, a file, or standard input."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO, Annotated

from regard.cli.errors import MisuseError, memory_errors
from regard.cli.parameters import Option
from regard.gpt.utf8 import NotUTF8Error, decode_utf8

__all__ = ["UTF8Only", "as_unicode", "read_text"]

_MOST_BYTES = 2**28

UTF8Only = Annotated[
    bool,
    Option("--utf8-only", help="Of a folder, skip files that are not UTF-8 text."),
]


def read_text(text: str | None, file: Path | None) -> str | None:
    """Read the text from the argument, the file or standard input.

    Args:
        text: the text itself; ``-`` stands for standard input.
        file: a file with the text.

    Returns:
        The text, or None without either.

    Raises:
        MisuseError: if both are given, the text is empty or longer than 256 MiB, or it or the file
            cannot be read as UTF-8.
    """
    if text is not None and file is not None:
        raise MisuseError("the text is given twice: give it as text, or by --file")
    if text is None and file is None:
        return None
    if file is not None:
        source = str(file)
        content = _decoded(_bytes_of(file), source)
    elif text == "-":
        source = "standard input"
        if sys.stdin is None:
            raise MisuseError("standard input is closed: give the text, or --file FILE")
        content = _decoded(_read(sys.stdin.buffer, source), source)
    else:
        source = "the text"
        content = as_unicode(text or "", source)
    if not content:
        raise MisuseError(f"{source} is empty: give at least one character")
    return content


def _bytes_of(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return _read(opened, str(file))
    except FileNotFoundError:
        raise MisuseError(f"{file} does not exist: give the path of a text file") from None
    except IsADirectoryError:
        raise MisuseError(f"{file} is a folder: give one of the files in it") from None
    except OSError as error:
        raise MisuseError(f"{file} cannot be read: {error.strerror}") from None


def _read(opened: IO[bytes], source: str) -> bytes:
    with memory_errors("give a shorter text"):
        data = opened.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise MisuseError(f"{source} has more than {_MOST_BYTES >> 20} MiB: give a part of it")
    return data


def as_unicode(argument: str, source: str) -> str:
    """Check that an argument is valid Unicode, since a shell may pass arbitrary bytes.

    Raises:
        MisuseError: if it is not.
    """
    try:
        return _decoded(argument.encode(errors="surrogateescape"), source)
    except UnicodeEncodeError as error:
        half = f"U+{ord(argument[error.start]):04X} at index {error.start}"
        raise MisuseError(
            f"{source} holds half of a surrogate pair, {half}: leave it out"
        ) from None


def _decoded(data: bytes, source: str) -> str:
    """Decode a text with line ends normalised as in `regard train`."""
    try:
        return "".join(decode_utf8([data], source))
    except NotUTF8Error as error:
        raise MisuseError(
            f"{error}; convert it first, for example with iconv -f latin1 -t utf-8"
        ) from None
