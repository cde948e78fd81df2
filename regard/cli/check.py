"""`regard check`."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Annotated

import typer
from regard_course import Answer, CourseError, Exercise, Verdict, check_file, exercise, pages
from regard_course import check as check_given

from regard.cli.errors import MisuseError, user_errors
from regard.cli.layout import fitted

__all__ = ["check"]


def check(
    number: Annotated[
        str | None, typer.Argument(help="The exercise, such as 5.5; without it, all are listed.")
    ] = None,
    answer: Annotated[
        list[str] | None,
        typer.Argument(
            help="A Python file with your solution; or the answer: numbers, or a choice."
        ),
    ] = None,
) -> None:
    """Check an exercise of the course.

    The exit status is 0 where it is right, 1 where it is wrong, 2 where it cannot be checked.

    Examples:
    regard check

    regard check 5.5

    regard check 5.5 my.py

    regard check 5.3 1/2 1/2 0
    """
    if number is None:
        typer.echo(_all())
        return
    with user_errors(CourseError):
        subject = exercise(number)
        if not answer:
            typer.echo(_one(subject))
            return
        verdict = _verdict(subject, answer)
    typer.echo("\n".join(map(fitted, verdict.text.splitlines())))
    if not verdict.right:
        raise typer.Exit(1)


def _verdict(subject: Exercise, answer: list[str]) -> Verdict:
    if len(answer) == 1 and answer[0].endswith(".py"):
        try:
            verdict, printed = check_file(subject.number, Path(answer[0]))
        except CourseError as error:
            typer.echo(error.printed, nl=False)
            raise
        typer.echo(printed, nl=False)
        return verdict
    if not isinstance(subject, Answer):
        raise MisuseError(
            f"{subject.number} takes one Python file that defines {subject.signature}; "
            f"got {' '.join(answer)!r}"
        )
    if subject.choices:
        return check_given(subject.number, " ".join(answer))
    words = " ".join(answer).replace(",", " ").split()
    numbers = [_number(word) for word in words]
    return check_given(subject.number, numbers[0] if len(numbers) == 1 else numbers)


def _number(word: str) -> float:
    """A number, or a fraction such as 1/3."""
    try:
        return float(Fraction(word)) if "/" in word else float(word.replace("−", "-"))
    except (ValueError, ZeroDivisionError):
        raise MisuseError(
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
    return "\n".join(
        map(
            fitted,
            (
                f"{subject.number} ({subject.kind}): {subject.title}",
                f"Expected: {subject.expects}.",
                f"Check it: regard check {subject.number} {given}",
                f"Hint: {subject.hint}",
            ),
        )
    )
