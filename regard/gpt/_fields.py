"""Fields of configurations: a default, a line of help, a range."""

from __future__ import annotations

import sys
from dataclasses import field
from typing import Any

_MOST = 2**31 - 1
"""The largest count: sizes of a tensor that are products of some still have a number."""


def option(default: Any, text: str) -> Any:
    """A field with its default and the help text that the command line shows."""
    return field(default=default, metadata={"help": text})


def require_count(config: object, name: str, *, least: int, most: int = _MOST) -> None:
    """Raise ValueError unless a field is a whole number in a range."""
    value = getattr(config, name)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not least <= value <= most:
        raise ValueError(
            f"{type(config).__name__}.{name} is {value!r}; expected a whole number >= {least} and "
            f"<= {most}"
        )


def require_number(
    config: object,
    name: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> None:
    """Raise ValueError unless a field is a finite number in a range."""
    value = getattr(config, name)
    bounds = [
        (f">= {least}", least is None or (_real(value) and value >= least)),
        (f"> {above}", above is None or (_real(value) and value > above)),
        (f"<= {most}", most is None or (_real(value) and value <= most)),
        (f"< {below}", below is None or (_real(value) and value < below)),
    ]
    if not all(held for _, held in bounds):
        wanted = [text for text, _ in bounds if not text.endswith("None")]
        raise ValueError(
            f"{type(config).__name__}.{name} is {value!r}; expected a number {' and '.join(wanted)}"
        )


def _real(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max  # an int may be too large for a float


def require_flag(config: object, name: str) -> None:
    """Raise ValueError unless a field is True or False."""
    value = getattr(config, name)
    if type(value) is not bool:
        raise ValueError(f"{type(config).__name__}.{name} is {value!r}; expected True or False")


def require_choice(config: object, name: str, *choices: str) -> None:
    """Raise ValueError unless a field is one of some words."""
    value = getattr(config, name)
    if value not in choices:
        expected = f"{', '.join(choices[:-1])} or {choices[-1]}"
        raise ValueError(f"{type(config).__name__}.{name} is {value!r}; expected {expected}")
