"""Numbers of layers, heads, queries or keys: an integer, a slice, or several integers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Indices = int | slice | Sequence[int]


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
        given = repr(indices)
        if hasattr(indices, "shape"):  # all numbers of a tensor would fill many lines
            kind = type(indices).__name__
            given = f"a {kind} of shape {tuple(indices.shape)}; give its tolist()"
        raise TypeError(f"{name} must be an integer, a slice or integers, but is {given}")
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


def has_negative(indices: tuple[int, ...] | slice | None) -> bool:
    """Whether any number counts from the end."""
    if indices is None:
        return False
    if isinstance(indices, slice):
        return any(end is not None and end < 0 for end in (indices.start, indices.stop))
    return any(number < 0 for number in indices)


def from_start(number: int, size: int) -> int:
    """A number that may count from the end, counted from the start."""
    return number + size if number < 0 else number


def chosen(indices: tuple[int, ...] | slice | None, size: int, name: str) -> tuple[int, ...]:
    """The indices of 0 … size − 1 that are meant; None is all.

    Raises:
        IndexError: for a number out of range.
    """
    if indices is None:
        return tuple(range(size))
    if isinstance(indices, slice):
        return tuple(range(size))[indices]
    for number in indices:
        if not -size <= number < size:
            raise IndexError(f"{name} asks for {number}, but there are only 0 to {size - 1}")
    return tuple(from_start(number, size) for number in indices)


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Runs of consecutive numbers, each its first and one past its last, in order."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and number <= found[-1][1]:
            found[-1] = found[-1][0], number + 1
        else:
            found.append((number, number + 1))
    return found


def contains(indices: tuple[int, ...] | slice | None, number: int) -> bool:
    """Whether a number is meant, where their count is not known and none counts from the end."""
    if isinstance(indices, slice):
        stop = number + 1 if indices.stop is None else indices.stop
        return number in range(indices.start or 0, stop, indices.step or 1)
    return indices is None or number in indices
