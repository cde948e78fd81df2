"""Errors of the user, which the command line prints in one line."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from regard.errors import Error

__all__ = ["MisuseError", "memory_errors", "naming_options", "user_errors"]


class MisuseError(Error):
    """A command line that cannot be run; the message says why, and the cure."""


@contextmanager
def memory_errors(cure: str) -> Iterator[None]:
    """Report errors of memory inside the block as a `MisuseError` with the cure."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch raises RuntimeError on the CPU
        torch = sys.modules.get("torch")  # not every command imports it
        gpu = torch is not None and isinstance(error, torch.OutOfMemoryError)
        if not (gpu or isinstance(error, MemoryError) or "can't allocate memory" in str(error)):
            raise
        raise MisuseError(f"this needs more memory than there is: {cure}") from error


@contextmanager
def user_errors(*kinds: type[Exception], rewrite: Callable[[str], str] = str) -> Iterator[None]:
    """Report exceptions of these classes as a `MisuseError`, without a traceback.

    The block should only contain calls whose exceptions concern the user's arguments.

    Args:
        kinds: the exception classes.
        rewrite: edits the message, for example to replace fields by options.
    """
    try:
        yield
    except kinds as error:
        message = str(error)
        if isinstance(error, OSError) and error.filename and error.strerror:  # without its number
            message = f"{error.filename}: {error.strerror}"
        raise MisuseError(rewrite(message)) from error


def naming_options(*arguments: str) -> Callable[[str], str]:
    """Return a function that replaces Python's arguments in a message by options.

    >>> naming_options("tokens", "past")("tokens is -1; choose tokens=3 or past='slide'")
    '--tokens is -1; choose --tokens 3 or --past slide'
    """
    name = f"({'|'.join(arguments)})"

    def option(found: re.Match[str]) -> str:
        return f"--{found[1].replace('_', '-')} "

    def rewrite(message: str) -> str:
        message = re.sub(rf"^{name} (?=is )", option, message)
        return re.sub(rf"\b{name}=([\"']?)(\w+)\2", lambda found: option(found) + found[3], message)

    return rewrite
