"""The explorer: a page where attention can be looked at, at any length."""

from typing import Any

from regard._extras import needing

with needing("cli"):
    from regard.explorer._report import report
    from regard.explorer._subjects import ExplorerError, ModelSubject, RecordingSubject

__all__ = ["Explorer", "ExplorerError", "ModelSubject", "RecordingSubject", "explore", "report"]


def __getattr__(name: str) -> Any:
    """Bring what serves when it is asked for: a report needs no server."""
    if name in {"Explorer", "explore"}:
        with needing("explore"):
            from regard.explorer import _explore

        return getattr(_explore, name)
    raise AttributeError(f"module 'regard.explorer' has no attribute {name!r}")
