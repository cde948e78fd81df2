"""The error of this part of the package."""

from __future__ import annotations

from regard.errors import Error


class InterventionError(Error):
    """A change that can't be made, contradicts another one or was met by no call."""
