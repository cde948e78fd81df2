"""Questions with choices, which a script lets the reader answer before the course and after it.

In the Markdown a comment ``<!-- questions -->`` stands where the script shows how far one is, and
``<!-- question right=2 -->`` before each list of choices, of which the second is right here.
"""

from __future__ import annotations

import re

__all__ = ["QuestionError", "question"]

_RIGHT = re.compile(r"\s*right=(?P<number>[1-9])\s*")


class QuestionError(ValueError):
    """A comment that does not say which choice is right."""


def question(settings: str) -> str:
    """Write the mark of a question; its choices follow it.

    Args:
        settings: what the comment says after ``question``.

    Raises:
        QuestionError: see there.
    """
    match = _RIGHT.fullmatch(settings)
    if match is None:
        raise QuestionError("a question says which choice is right: <!-- question right=2 -->")
    return f'<div class="question" data-right="{match["number"]}"></div>\n'
