"""A page that shows attention at any length: from a server, in a notebook, or as one file."""

from typing import TYPE_CHECKING

from regard._faces import make_lazy

if TYPE_CHECKING:
    from regard.page._errors import PageError
    from regard.page._explore import Explorer, explore
    from regard.page._live import needs_folder
    from regard.page._report import report
    from regard.page._widget import ExplorerWidget
    from regard.page.subjects import ModelSubject, RecordingSubject

__all__ = [
    "Explorer",
    "ExplorerWidget",
    "ModelSubject",
    "PageError",
    "RecordingSubject",
    "explore",
    "needs_folder",
    "report",
]

# A report needs no server.
_HOMES = {
    "Explorer": "_explore",
    "explore": "_explore",
    "ExplorerWidget": "_widget",
    "needs_folder": "_live",
    "report": "_report",
    "PageError": "_errors",
    "ModelSubject": "subjects",
    "RecordingSubject": "subjects",
}

make_lazy(__name__, _HOMES)
