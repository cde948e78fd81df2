"""Libraries that not everyone needs: imported where they are used, named where they are missing."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Say of a library that can't be imported inside the block how to get it.

    >>> with needing("record"):
    ...     import no_such_library
    Traceback (most recent call last):
    ModuleNotFoundError: this needs the library no_such_library: pip install 'regard[record]'
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        library = (missing.name or "").partition(".")[0]
        message = f"this needs the library {library}: pip install 'regard[{extra}]'"
        raise ModuleNotFoundError(message, name=library) from None
