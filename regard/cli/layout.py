"""Wraps lines to the width of the terminal, or to 80 columns without one."""

from __future__ import annotations

import shutil
from textwrap import wrap

__all__ = ["fitted"]


def fitted(line: str, indent: int = 0) -> str:
    """Wrap a line at spaces to the width of the terminal.

    Args:
        line: the line; a word that is longer than the terminal, such as a path, is not split.
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
