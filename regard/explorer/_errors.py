"""The error of this part of the package."""

from __future__ import annotations

from regard.errors import Error


class ExplorerError(Error, ValueError):
    """A request that can't be answered, in a sentence for the reader."""
