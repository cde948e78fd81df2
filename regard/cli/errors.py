"""The user's errors, which the command line shows in one line."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from regard.errors import Error

__all__ = ["MisuseError", "memory_errors", "naming_options", "user_errors"]


class MisuseError(Error):
    """A command that cannot be run; the message says why, and what to do instead."""


@contextmanager
def memory_errors(cure: str) -> Iterator[None]:
    """Show the user that memory ran out inside the block, with the cure."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch has no class of its own for the CPU's
        torch = sys.modules.get("torch")  # which not every command needs
        gpu = torch is not None and isinstance(error, torch.OutOfMemoryError)
        if not (gpu or isinstance(error, MemoryError) or "can't allocate memory" in str(error)):
            raise
        raise MisuseError(f"this needs more memory than there is: {cure}") from error


@contextmanager
def user_errors(*kinds: type[Exception], rewrite: Callable[[str], str] = str) -> Iterator[None]:
    """Show errors of these kinds to the user, without a traceback.

    Only calls whose errors are about the user's arguments belong inside.

    Args:
        kinds: the errors.
        rewrite: changes the message, such as names of fields to options.
    """
    try:
        yield
    except kinds as error:
        message = str(error)
        if isinstance(error, OSError) and error.filename and error.strerror:  # without its number
            message = f"{error.filename}: {error.strerror}"
        raise MisuseError(rewrite(message)) from error


def naming_options(*arguments: str) -> Callable[[str], str]:
    """What puts options in place of Python's arguments in a message.

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
