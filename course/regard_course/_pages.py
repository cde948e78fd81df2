"""The pages of the course that have exercises: the modules ``page_*.py`` beside this one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

from regard_course._exercise import Exercise
from regard_course._verdict import CourseError

__all__ = ["Page", "exercise", "pages"]


@dataclass(frozen=True)
class Page:
    """A page of the course.

    Args:
        number: as in the number of its exercises, such as ``5`` or ``9a``.
        title: its heading without the number.
        exercises: in the order in which they stand on the page.

    Example:
        >>> from regard_course import pages
        >>> page = pages()[0]
        >>> page.number, page.title
        ('0', 'Why look back')
    """

    number: str
    title: str
    exercises: Sequence[Exercise]


@cache
def pages() -> Sequence[Page]:
    """Every page that has exercises, in the order of reading.

    Example:
        >>> [page.title for page in pages() if page.number == "5"]
        ['The causal mask']
    """
    files = sorted(Path(__file__).parent.glob("page_*.py"))
    return [_page(file.stem) for file in files]


def _page(name: str) -> Page:
    module = import_module(f"{__package__}.{name}")
    digits = name.removeprefix("page_")
    return Page(digits[:-1].lstrip("0") + digits[-1], module.TITLE, module.EXERCISES)


def exercise(number: str) -> Exercise:
    """The exercise of this number, such as ``5.5``.

    Raises:
        CourseError: there is none.

    Example:
        >>> exercise("5.5").expects
        'a function causal_mask(length)'
    """
    for page in pages():
        for one in page.exercises:
            if one.number == number:
                return one
    known = [page.number for page in pages()]
    page_number = number.partition(".")[0]
    here = [one.number for page in pages() if page.number == page_number for one in page.exercises]
    cure = f"page {page_number} has {', '.join(here)}" if here else f"pages are {', '.join(known)}"
    raise CourseError(f"there is no exercise {number!r}: {cure}")
