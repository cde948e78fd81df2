"""What an exercise is, and the pages that have some: the modules ``page_*.py`` beside this one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

from regard.errors import Error

__all__ = ["Answer", "Exercise", "Function", "Kind", "Mistake", "Page", "exercise", "pages"]

Kind: TypeAlias = Literal["predict", "by hand", "write", "break"]
"""What an exercise asks for.

Example:
    >>> from regard_course import exercise
    >>> exercise("5.5").kind
    'write'
"""


@dataclass(frozen=True)
class Mistake:
    """A wrong answer or function that people give, recognised by what it results in.

    Args:
        name: a few words, such as ``0 for −∞``.
        wrong: of an `Answer` the value that comes of it; of a `Function` a function with it.
        why: one sentence that says what is wrong with it.

    Example:
        >>> from regard_course import exercise
        >>> [mistake.name for mistake in exercise("1.1").mistakes]
        ['−∞ counted as 0', 'not divided by the sum']
    """

    name: str
    wrong: Any
    why: str


@dataclass(frozen=True)
class Answer:
    """An exercise whose answer is a number, several numbers, or one of named choices.

    The choices are the right one and those of the mistakes, so each wrong choice says why.

    Args:
        number: page.n, such as ``5.1``.
        kind: a prediction, by hand, or to break and explain.
        title: what is to be answered, in one line.
        expected: a number, a list of numbers (of lists, for a table), or a choice.
        tolerance: how far a number may be off, absolutely.
        hint: the first step of the way.
        mistakes: wrong answers that people give.

    Example:
        >>> from regard_course import exercise
        >>> answer = exercise("1.3")
        >>> answer.variable, answer.expects, answer.expected
        ('answer_1_3', '4 numbers', [6.0, 3.0, 3.0, 4.0])
    """

    number: str
    _: KW_ONLY
    kind: Kind
    title: str
    expected: Any
    tolerance: float = 0.006
    hint: str
    mistakes: Sequence[Mistake]

    @property
    def variable(self) -> str:
        """The variable that holds the answer in a file; ``answer`` does as well."""
        return f"answer_{self.number.replace('.', '_')}"

    @property
    def choices(self) -> list[str]:
        """The named choices in the order of the alphabet; empty for numbers."""
        if not isinstance(self.expected, str):
            return []
        return sorted([self.expected, *(one.wrong for one in self.mistakes)])

    @property
    def expects(self) -> str:
        """What is to be given, in words."""
        if self.choices:
            return f"one of: {', '.join(self.choices)}"
        shape = tuple(torch.tensor(self.expected).shape)
        if not shape:
            return "a number"
        if len(shape) == 1:
            return f"{shape[0]} numbers"
        return f"{' × '.join(map(str, shape))} numbers, row by row"


@dataclass(frozen=True)
class Function:
    """An exercise that is solved by a function.

    Args:
        number: page.n, such as ``5.5``.
        kind: to write, or to break and explain.
        title: what is to be written, in one line.
        name: of the function.
        reference: a right function; its signature is the one that is asked for.
        cases: gives the arguments of each call that is compared.
        tolerance: how far numbers may be off, relative to their size and absolutely.
        hint: the first step of the way.
        mistakes: functions with the mistakes that people make; at least one case tells each of them
            from the reference and from the others.

    Example:
        >>> from regard_course import exercise
        >>> exercise("5.5").signature
        'causal_mask(length)'
    """

    number: str
    _: KW_ONLY
    kind: Kind = "write"
    title: str
    name: str
    reference: Callable[..., Any]
    cases: Callable[[], Sequence[tuple[Any, ...]]]
    tolerance: float = 1e-4
    hint: str
    mistakes: Sequence[Mistake]

    @property
    def signature(self) -> str:
        """The function's name and parameters, such as ``causal_mask(length)``."""
        return f"{self.name}({', '.join(inspect.signature(self.reference).parameters)})"

    @property
    def expects(self) -> str:
        """What is to be given, in words."""
        return f"a function {self.signature}"


Exercise: TypeAlias = Answer | Function
"""An exercise of the course.

Example:
    >>> from regard_course import exercise
    >>> [type(exercise(number)).__name__ for number in ("1.1", "5.5")]
    ['Answer', 'Function']
"""


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
        regard.Error: there is none.

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
    raise Error(f"there is no exercise {number!r}: {cure}")
