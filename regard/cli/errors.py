"""What goes wrong by the user's doing, told in one line."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from regard.errors import Error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["MisuseError", "telling", "telling_of_memory"]


class MisuseError(Error):
    """What was asked for cannot be done; the message says why, and what to do instead."""


@contextmanager
def telling_of_memory(cure: str) -> Iterator[None]:
    """Tell that something needs more memory than there is, and what to do about it."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch has no class of its own for the CPU's
        gpu = isinstance(error, torch.OutOfMemoryError)
        if not (gpu or isinstance(error, MemoryError) or "can't allocate memory" in str(error)):
            raise
        raise MisuseError(f"this needs more memory than there is: {cure}") from error


@contextmanager
def telling(*kinds: type[Exception], tell: Callable[[str], str] = str) -> Iterator[None]:
    """Tell errors of these kinds to the user instead of showing a traceback.

    Only calls whose errors are about what the user gave belong inside.

    Args:
        kinds: the errors.
        tell: puts their message in the user's words.
    """
    try:
        yield
    except kinds as error:
        raise MisuseError(tell(str(error))) from error
