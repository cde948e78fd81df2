"""What goes wrong by the user's doing, told in one line."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from regard.errors import Error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["MisuseError", "telling"]


class MisuseError(Error):
    """What was asked for cannot be done; the message says why, and what to do instead."""


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
