"""Indices into a pattern: expansion to one entry per axis, and checks."""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType
from typing import Any, TypeAlias

import torch
from torch import Tensor

Index: TypeAlias = int | slice | EllipsisType | Sequence[int] | Tensor


_INDICES = (torch.bool, torch.int8, torch.int16, torch.int32, torch.int64)


def spelled_out(index: Index | tuple[Index, ...], ndim: int) -> list[Any]:
    """Expand an index to one entry per axis; the last two axes are queries and keys."""
    entries = list(index) if isinstance(index, tuple) else [index]
    dots = [i for i, entry in enumerate(entries) if entry is Ellipsis]
    missing = ndim - (len(entries) - len(dots))
    if len(dots) > 1 or missing < 0:
        raise IndexError(f"index {index!r} has too many entries for a pattern of {ndim} axes")
    at = dots[0] if dots else len(entries)
    full = [*entries[:at], *[slice(None)] * missing, *entries[at + len(dots) :]]
    full = [_checked(entry, matrix_axis=axis >= ndim - 2) for axis, entry in enumerate(full)]
    if all(isinstance(entry, torch.Tensor) for entry in full[-2:]):
        raise TypeError("only one of queries and keys may be picked by a list; slice the other")
    return full


def _checked(entry: Any, *, matrix_axis: bool) -> Any:
    """Check an entry, and convert a list of indices to a tensor."""
    if isinstance(entry, slice) or (isinstance(entry, int) and not isinstance(entry, bool)):
        return entry
    if matrix_axis and isinstance(entry, list) and all(isinstance(i, int) for i in entry):
        return torch.tensor(entry, dtype=None if entry else torch.int64, device="cpu")
    if matrix_axis and isinstance(entry, torch.Tensor) and entry.ndim <= 1:
        if entry.dtype not in _INDICES:
            raise TypeError(f"an index must hold integers or booleans, but is {entry.dtype}")
        return entry.cpu()
    where = "queries and keys" if matrix_axis else "batch and heads"
    kinds = "an integer, a slice or a list of them" if matrix_axis else "an integer or a slice"
    raise TypeError(f"{where} are indexed by {kinds}, but got {entry!r}")


def span(name: str, bounds: tuple[int, int] | None, size: int) -> slice:
    """Check the start and stop of a range; None is the whole axis."""
    first, stop = (0, size) if bounds is None else bounds
    if not 0 <= first < stop <= size:
        raise ValueError(f"{name}={bounds} is not a range within 0 … {size}")
    return slice(first, stop)


def require_room(size: int, limit: int | None) -> None:
    """Check that `size` bytes of weights are within the limit; None is no limit."""
    if limit is not None and size > limit:
        raise ValueError(
            f"these weights take {size / 2**30:.1f} GiB, above the limit of "
            f"{limit / 2**30:.1f} GiB; take fewer rows, read(...) a reduction, or dense(limit=None)"
        )
