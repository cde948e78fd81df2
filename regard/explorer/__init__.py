"""The explorer: a page where attention can be looked at, at any length."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.explorer._errors import ExplorerError
    from regard.explorer._explore import Explorer, explore
    from regard.explorer._recording_subject import RecordingSubject
    from regard.explorer._report import report
    from regard.explorer._widget import ExplorerWidget
    from regard.explorer.subjects import ModelSubject

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
        raise AttributeError(f"module 'regard.explorer' has no attribute {name!r}")
    return getattr(import_module(f"regard.explorer.{_PLACES[name]}"), name)
