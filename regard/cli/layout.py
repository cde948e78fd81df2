"""Lines that fit the terminal, or 80 columns where there is none."""

from __future__ import annotations

import shutil
from textwrap import wrap

__all__ = ["fitted"]


def fitted(line: str, indent: int = 0) -> str:
    """A line, cut between words into several where it is too long for the terminal.

    Args:
        line: the line; a word, such as a path, that is longer than the terminal stays whole.
        indent: columns by which the lines after the first are indented.

    >>> fitted("short")
    'short'
    """
    start = line[: len(line) - len(line.lstrip())]
    lines = wrap(
        line.lstrip(),
        shutil.get_terminal_size().columns,
        initial_indent=start,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines)
