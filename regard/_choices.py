"""Arguments that are one of some words."""

from __future__ import annotations

from collections.abc import Sequence


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Check that an argument is one of some words.

    Raises:
        ValueError: if it is not.
    """
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, but is {value!r}")
