"""Exercises of the course that check themselves.

Each page of the course has exercises, numbered page.n. `check` compares an answer or a function
with the reference, names the first wrong number and its place, and recognises mistakes that people
make.
`regard check 5.5 my.py` does the same on the command line, and `regard check mine.py` checks the
file that the reader writes from page to page.
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
from regard_course._file import check_file, check_own_file
from regard_course._mine import Result

__all__ = [
    "Answer",
    "Exercise",
    "Function",
    "Kind",
    "Mistake",
    "Page",
    "Result",
    "Verdict",
    "check",
    "check_file",
    "check_own_file",
    "exercise",
    "pages",
]
