"""What a check says."""

from __future__ import annotations

from dataclasses import dataclass

from regard.errors import Error

__all__ = ["CourseError", "Verdict"]


class CourseError(Error):
    """An answer that cannot be checked; the message says why, and the cure.

    Args:
        message: one line.
        printed: what the learner's file printed before.
    """

    def __init__(self, message: str, printed: str = "") -> None:
        super().__init__(message)
        self.printed = printed


@dataclass(frozen=True, repr=False)
class Verdict:
    """The result of a check; it shows as its text.

    Args:
        right: whether the answer is right.
        text: one line where it is right; else the first wrong number and its place, the mistake
            where it is recognised, and the hint.
    """

    right: bool
    text: str

    def __repr__(self) -> str:
        return self.text
