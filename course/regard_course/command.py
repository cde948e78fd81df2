"""What `regard check` does: it finds this module by the entry point ``check``."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from regard.cli.layout import fitted
from regard.errors import Error
from regard_course._check import Verdict, check
from regard_course._exercise import Answer, Exercise, exercise, pages
from regard_course._file import check_file, check_own_file

__all__ = ["run"]


def run(number: str | None, answer: Sequence[str]) -> bool:
    """Print all exercises, what one of them asks for, or the verdict on an answer.

    Args:
        number: of the exercise, such as ``5.5``, or the reader's own file, such as ``mine.py``;
            None lists all.
        answer: a Python file, numbers or a choice, word by word; empty where only the exercise is
            asked for.

    Returns:
        False where the answer is wrong.

    Raises:
        regard.Error: there is no such exercise, or the answer cannot be checked.

    Example:
        >>> from regard_course.command import run
        >>> run("1.3", ["6", "3", "3", "4"])
        1.3 right.
        True
    """
    if number is None:
        print(_all())
        return True
    if number.endswith(".py") and not answer:
        return _own(Path(number))
    subject = exercise(number)
    if not answer:
        print(_one(subject))
        return True
    verdict = _verdict(subject, answer)
    print("\n".join(map(fitted, verdict.text.splitlines())))
    return verdict.right


def _own(path: Path) -> bool:
    """Print a line for each stage of the reader's file, and more of the one that is wrong."""
    results = check_own_file(path)
    said = {"missing": "not there yet", "waiting": "waits for the one that is wrong"}
    for one in results:
        print(f"{one.page:>2}  {one.name:34} {said.get(one.state, one.state)}")
        if one.state == "wrong":
            print(fitted(f"    {one.what}.", 4))
            if one.why:
                print(fitted(f"    Mistake: {one.why}.", 4))
    right = sum(one.state == "right" for one in results)
    print(f"{right} of {len(results)} right")
    return not any(one.state == "wrong" for one in results)


def _verdict(subject: Exercise, answer: Sequence[str]) -> Verdict:
    if len(answer) == 1 and answer[0].endswith(".py"):
        return check_file(subject.number, Path(answer[0]))
    if not isinstance(subject, Answer):
        raise Error(
            f"{subject.number} takes one Python file that defines {subject.signature}; "
            f"got {' '.join(answer)!r}"
        )
    if subject.choices:
        return check(subject.number, " ".join(answer))
    words = " ".join(answer).replace(",", " ").split()
    numbers = [_number(word) for word in words]
    return check(subject.number, numbers[0] if len(numbers) == 1 else numbers)


def _number(word: str) -> float:
    """A number, or a fraction such as 1/3."""
    try:
        return float(Fraction(word)) if "/" in word else float(word.replace("−", "-"))
    except (ValueError, ZeroDivisionError):
        raise Error(
            f"{word!r} is neither a number nor a Python file; write 0.5, 1/2 or my.py"
        ) from None


def _all() -> str:
    lines = []
    for page in pages():
        lines.append(f"{page.number} · {page.title}")
        for one in page.exercises:
            start = f"  {one.number:6} {one.kind:8} "
            lines.append(fitted(f"{start}{one.title}", len(start)))
    return "\n".join(lines)


def _one(subject: Exercise) -> str:
    given = "my.py"
    if isinstance(subject, Answer):
        given = "CHOICE" if subject.choices else "NUMBER"
    lines = (
        f"{subject.number} ({subject.kind}): {subject.title}",
        f"Expected: {subject.expects}.",
        f"Check it: regard check {subject.number} {given}",
        f"Hint: {subject.hint}",
    )
    return "\n".join(map(fitted, lines))
