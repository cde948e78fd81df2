"""The error of this part of the package."""

from __future__ import annotations

from regard.errors import Error


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
