"""Compare what came with what was expected: the first wrong number and its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Difference", "Misfit", "compare"]


@dataclass(frozen=True)
class Difference:
    """The first number that is wrong.

    Args:
        place: where it stands, such as ``row 0, column 1``; empty where there is one number alone.
        came: the number.
        expected: what should stand there.
    """

    place: str
    came: str
    expected: str


@dataclass(frozen=True)
class Misfit:
    """A result that cannot be compared number by number.

    Args:
        came: what it is.
        expected: what it should be.
    """

    came: str
    expected: str


def compare(
    came: Any, expected: Any, tolerance: float, *, relative: bool = True
) -> Difference | Misfit | None:
    """The first difference, or None.

    Args:
        came: a tensor, a number, a text, or a tuple or list of these.
        expected: the same kind of thing; numbers may come as tensors of one entry.
        tolerance: how far a number may be off.
        relative: whether it may be off by that much of its own size as well.
    """
    if isinstance(expected, torch.Tensor):
        return _compare_tensors(came, expected, tolerance, relative=relative)
    if isinstance(expected, tuple | list):
        return _compare_all(came, expected, tolerance, relative=relative)
    if isinstance(expected, str):
        if not isinstance(came, str):
            return Misfit(_kind(came), "a text")
        return None if came == expected else Difference("", repr(came), repr(expected))
    if isinstance(came, torch.Tensor) and came.ndim == 0:
        came = came.item()
    if not isinstance(came, bool | int | float):
        return Misfit(_kind(came), "a number")
    return _compare_tensors(
        torch.tensor(came, dtype=torch.float64),
        torch.tensor(expected, dtype=torch.float64),
        tolerance,
        relative=relative,
    )


def _compare_all(
    came: Any, expected: tuple[Any, ...] | list[Any], tolerance: float, *, relative: bool
) -> Difference | Misfit | None:
    if not isinstance(came, tuple | list) or len(came) != len(expected):
        return Misfit(_kind(came), f"{_kind(expected)}")
    for at, (one, other) in enumerate(zip(came, expected, strict=True)):
        difference = compare(one, other, tolerance, relative=relative)
        if isinstance(difference, Misfit):
            return Misfit(f"{difference.came} at {at}", difference.expected)
        if difference is not None:
            place = ", ".join(filter(None, [f"result {at}", difference.place]))
            return Difference(place, difference.came, difference.expected)
    return None


def _compare_tensors(
    came: Any, expected: torch.Tensor, tolerance: float, *, relative: bool
) -> Difference | Misfit | None:
    if not isinstance(came, torch.Tensor):
        return Misfit(_kind(came), _kind(expected))
    if came.shape != expected.shape or _family(came.dtype) != _family(expected.dtype):
        return Misfit(_kind(came), _kind(expected))
    came, expected = came.detach().cpu(), expected.detach().cpu()
    if expected.dtype == torch.bool:
        wrong = came != expected
    else:
        came, expected = came.double(), expected.double()
        rtol = tolerance if relative else 0.0
        wrong = ~torch.isclose(came, expected, rtol=rtol, atol=tolerance, equal_nan=True)
    if not wrong.any():
        return None
    index = tuple(int(at) for at in wrong.nonzero()[0])
    return Difference(_place(index), *_shown(came[index].item(), expected[index].item()))


def _family(dtype: torch.dtype) -> str:
    if dtype.is_floating_point:
        return "floating"
    return str(dtype) if dtype == torch.bool or dtype.is_complex else "integer"


def _kind(thing: Any) -> str:
    if isinstance(thing, torch.Tensor):
        return f"a tensor of shape {tuple(thing.shape)} and {thing.dtype}"
    if isinstance(thing, tuple | list):
        return f"a {type(thing).__name__} of {len(thing)}"
    if thing is None:
        return "None (is a return missing?)"
    name = type(thing).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _place(index: tuple[int, ...]) -> str:
    """Where an entry stands: in a table by row and column, the tables before it by their index."""
    if not index:
        return ""
    if len(index) == 1:
        return f"entry {index[0]}"
    table = f"table {', '.join(map(str, index[:-2]))}, " if len(index) > 2 else ""
    return f"{table}row {index[-2]}, column {index[-1]}"


def _shown(came: float, expected: float) -> tuple[str, str]:
    """Both with as few digits as tell them apart, at least four; truth values by name."""
    if isinstance(expected, bool):
        return str(came), str(expected)
    for digits in (4, 7, 12):
        texts = f"{came:.{digits}g}", f"{expected:.{digits}g}"
        if texts[0] != texts[1]:
            break
    return texts
