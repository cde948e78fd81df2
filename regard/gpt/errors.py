"""The errors of a model's files, a corpus or a training run."""

from __future__ import annotations

from regard.errors import Error


class CheckpointError(Error, ValueError):
    """A model or run is missing, damaged, or another one than expected."""


class CorpusError(Error, ValueError):
    """A text is missing, unreadable or too short."""


class SaveError(Error, OSError):
    """A checkpoint could not be written, such as on a full disk; the one before it is whole."""


class DivergedError(Error, ArithmeticError):
    """A loss or a gradient is NaN or infinite.

    Attributes:
        step: the update, counted from 1.
        starts: where in the training text the windows of its batch begin, in tokens.
    """

    def __init__(self, message: str, *, step: int, starts: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.step = step
        self.starts = starts
