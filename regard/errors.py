"""The errors of this package that are more than a wrong argument."""

from __future__ import annotations


class Error(Exception):
    """Base of every error that `regard` defines itself.

    Example:
        >>> import regard
        >>> issubclass(regard.InterventionError, regard.Error)
        True
    """
