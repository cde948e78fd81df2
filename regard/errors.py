"""The exceptions that regard defines itself."""

from __future__ import annotations


class Error(Exception):
    """Base class of every exception that `regard` defines.

    Example:
        >>> import regard
        >>> issubclass(regard.Error, regard.Error)
        True
    """


class RecordError(Error):
    """A model or a call that can't be recorded, or a recording that can't answer a request.

    Example:
        >>> import regard
        >>> from regard.record import RecordError
        >>> try:
        ...     with regard.record():
        ...         pass
        ... except RecordError as error:
        ...     print(str(error).partition(";")[0])
        no attention call was seen
    """
