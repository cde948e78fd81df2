"""The explorer: a page where attention can be looked at, at any length."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.page._errors import ExplorerError
    from regard.page._explore import Explorer, explore
    from regard.page._recording_subject import RecordingSubject
    from regard.page._report import report
    from regard.page._widget import ExplorerWidget
    from regard.page.subjects import ModelSubject

__all__ = [
    "Explorer",
    "ExplorerError",
    "ExplorerWidget",
    "ModelSubject",
    "RecordingSubject",
    "explore",
    "report",
]

# Where each name comes from, imported when it is asked for: a report needs no server.
_PLACES = {
    "Explorer": "_explore",
    "explore": "_explore",
    "ExplorerWidget": "_widget",
    "report": "_report",
    "ExplorerError": "_errors",
    "ModelSubject": "subjects",
    "RecordingSubject": "_recording_subject",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'regard.page' has no attribute {name!r}")
    return getattr(import_module(f"regard.page.{_PLACES[name]}"), name)
