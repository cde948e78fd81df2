"""Fields of configurations: a default, a line of help, a range."""

from __future__ import annotations

import sys
from dataclasses import field
from math import inf, isfinite
from typing import Any

_MOST = 2**31 - 1
"""The largest count; products of several still fit into an int64."""


def option(default: Any, text: str, *, on_command: bool = True) -> Any:
    """Return a field with its default, its help, and whether commands have an option for it."""
    return field(default=default, metadata={"help": text, "on_command": on_command})


def require_count(config: object, name: str, *, least: int, most: int = _MOST) -> None:
    """Raise ValueError unless a field is a whole number in a range."""
    value = getattr(config, name)
    whole = isinstance(value, int) and not isinstance(value, bool)
    expected = f"a whole number >= {least} and <= {most}"
    _require(config, name, expected, is_met=whole and least <= value <= most)


def require_number(
    config: object,
    name: str,
    *,
    least: float = -inf,
    above: float = -inf,
    most: float = inf,
    below: float = inf,
) -> None:
    """Raise ValueError unless a field is a finite number in a range."""
    value = getattr(config, name)
    bounds = [(">=", least), (">", above), ("<=", most), ("<", below)]
    expected = " and ".join(f"{sign} {bound}" for sign, bound in bounds if isfinite(bound))
    fits = _is_finite(value) and least <= value <= most and above < value < below
    _require(config, name, f"a number {expected}", is_met=fits)


def require_flag(config: object, name: str) -> None:
    """Raise ValueError unless a field is True or False."""
    _require(config, name, "True or False", is_met=type(getattr(config, name)) is bool)


def require_choice(config: object, name: str, *choices: str) -> None:
    """Raise ValueError unless a field is one of some words."""
    expected = f"{', '.join(choices[:-1])} or {choices[-1]}"
    _require(config, name, expected, is_met=getattr(config, name) in choices)


def _require(config: object, name: str, expected: str, *, is_met: bool) -> None:
    if not is_met:
        value = getattr(config, name)
        raise ValueError(f"{type(config).__name__}.{name} is {value!r}; expected {expected}")


def _is_finite(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max  # an int may be too large for a float
