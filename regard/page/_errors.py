"""The error of the page: a request that can't be answered."""

from __future__ import annotations

from regard.errors import Error


class PageError(Error, ValueError):
    """A request that can't be answered, in a sentence for the reader.

    Args:
        message: the sentence.
        status: that of HTTP: 404 for what does not exist, 503 where too much waits already.

    Example:
        >>> import regard, torch
        >>> from regard.page import PageError, RecordingSubject
        >>> with regard.record() as recording:
        ...     _ = regard.attention(torch.randn(1, 2, 3, 4), *torch.randn(2, 1, 2, 5, 4))
        >>> try:
        ...     RecordingSubject(recording, title="three queries of five")
        ... except PageError as error:
        ...     print(str(error).partition(",")[0])
        the page shows whole sequences
    """

    def __init__(self, message: str, *, status: int = 422) -> None:
        super().__init__(message)
        self.status = status
