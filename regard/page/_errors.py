"""The error of this part of the package."""

from __future__ import annotations

from regard.errors import Error


class ExplorerError(Error, ValueError):
    """A request that can't be answered, in a sentence for the reader.

    Example:
        >>> import regard, torch
        >>> from regard.page import ExplorerError, RecordingSubject
        >>> with regard.record() as recording:
        ...     _ = regard.attention(torch.randn(1, 2, 3, 4), *torch.randn(2, 1, 2, 5, 4))
        >>> try:
        ...     RecordingSubject(recording, title="three queries of five")
        ... except ExplorerError as error:
        ...     print(str(error).partition(",")[0])
        the explorer shows whole sequences
    """
