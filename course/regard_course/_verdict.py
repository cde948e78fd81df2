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

    Example:
        >>> from regard_course import CourseError, exercise
        >>> try:
        ...     exercise("1.99")
        ... except CourseError as error:
        ...     print(str(error).partition(":")[0])
        there is no exercise '1.99'
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

    Example:
        >>> from regard_course import check
        >>> check("1.3", [6, 3, 3, 4]).right
        True
    """

    right: bool
    text: str

    def __repr__(self) -> str:
        return self.text
