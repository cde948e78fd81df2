"""Exercises of the course that check themselves.

Each page of the course has exercises, numbered page.n. `check` compares an answer or a function
with the reference, names the first wrong number and its place, and recognises mistakes that people
make.
`regard check 5.5 my.py` does the same on the command line.
"""

from regard_course._check import Verdict, check
from regard_course._exercise import (
    Answer,
    Exercise,
    Function,
    Kind,
    Mistake,
    Page,
    exercise,
    pages,
)
from regard_course._file import check_file

__all__ = [
    "Answer",
    "Exercise",
    "Function",
    "Kind",
    "Mistake",
    "Page",
    "Verdict",
    "check",
    "check_file",
    "exercise",
    "pages",
]
