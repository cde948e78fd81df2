"""`regard check`; the exercises are a separate distribution, found by an entry point."""

from __future__ import annotations

from typing import Annotated

import click

from regard.cli.errors import MisuseError, user_errors
from regard.cli.parameters import Argument
from regard.errors import Error

__all__ = ["check"]


def check(
    number: Annotated[
        str | None,
        Argument(
            help="The exercise, such as 5.5, or your own file of the course, mine.py; without "
            "it, all are listed."
        ),
    ] = None,
    answer: Annotated[
        tuple[str, ...],
        Argument(help="A Python file with your solution; or the answer: numbers, or a choice."),
    ] = (),
) -> None:
    """Check an exercise of the course, or the file that you write along it.

    The exit status is 0 where it is right, 1 where it is wrong, 2 where it cannot be checked.

    Examples:
    regard check

    regard check 5.5

    regard check 5.5 my.py

    regard check 5.3 1/2 1/2 0

    regard check mine.py
    """
    from importlib.metadata import entry_points

    found = entry_points(group="regard.commands", name="check")
    if not found:
        raise MisuseError("the exercises are not installed; pip install regard-course brings them")
    (one, *_) = found
    with user_errors(Error):
        is_right = one.load()(number, list(answer))
    if not is_right:
        raise click.exceptions.Exit(1)
