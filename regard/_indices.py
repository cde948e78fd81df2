"""Numbers of layers, heads, queries or keys: an integer, a slice, or several integers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def check_indices(name: str, indices: Any) -> tuple[int, ...] | slice | None:
    """Check an index, and list its integers; None stays None.

    Raises:
        TypeError: for anything but an integer, a slice of integers or integers.
        ValueError: for a slice that does not go forward.
    """
    if indices is None:
        return None
    if isinstance(indices, slice):
        ends = (indices.start, indices.stop, indices.step)
        if any(end is not None and not is_whole(end) for end in ends):
            raise TypeError(f"{name}={indices!r} must be a slice of integers")
        if indices.step is not None and indices.step < 1:
            raise ValueError(f"{name}={indices!r} must go forward; give a step of at least 1")
        return indices
    numbers: Iterable[Any] = [indices] if is_whole(indices) else indices
    try:
        listed = tuple(numbers)
    except TypeError:
        listed = (None,)
    if isinstance(indices, str) or not all(is_whole(number) for number in listed):
        raise TypeError(f"{name} must be an integer, a slice or integers, but is {indices!r}")
    return listed


def check_whole(number: object, name: str) -> None:
    """Check that an argument is an integer.

    Raises:
        TypeError: if it is not.
    """
    if not is_whole(number):
        raise TypeError(f"{name} must be a whole number, but is {number!r}")


def is_whole(number: object) -> bool:
    """Whether something is an integer, which a bool is not."""
    return isinstance(number, int) and not isinstance(number, bool)
