"""The explorer: a page where attention can be looked at, at any length."""

from regard._extras import needing

with needing("explore"):
    from regard.explorer._explore import Explorer, explore
    from regard.explorer._subjects import ExplorerError, ModelSubject, RecordingSubject

__all__ = ["Explorer", "ExplorerError", "ModelSubject", "RecordingSubject", "explore"]
