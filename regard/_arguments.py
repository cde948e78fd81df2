"""Checks of arguments: words, indices, and tensors whose memory holds their values.

A subclass of `torch.Tensor` may mean something else and leave its memory unwritten, as torch's
`CausalBias` does: only its ``__torch_function__`` knows its values. Such tensors are rejected.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch

Indices = int | slice | Sequence[int]

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Check that an argument is one of the given words.

    Raises:
        ValueError: if it is not.
    """
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, but is {value!r}")


def check_indices(name: str, indices: Any) -> tuple[int, ...] | slice | None:
    """Check an index and return its integers as a tuple; a slice and None are returned as given.

    Raises:
        TypeError: for anything but an integer, a slice of integers or a sequence of integers.
        ValueError: for a slice with a step below 1.
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
        if hasattr(indices, "shape"):  # the repr of a tensor may fill many lines
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
    """Return True for an integer; a bool is none."""
    return isinstance(number, int) and not isinstance(number, bool)


def has_negative(indices: tuple[int, ...] | slice | None) -> bool:
    """Return True if any index counts from the end."""
    if indices is None:
        return False
    if isinstance(indices, slice):
        return any(end is not None and end < 0 for end in (indices.start, indices.stop))
    return any(number < 0 for number in indices)


def from_start(number: int, size: int) -> int:
    """Convert an index that may count from the end to one that counts from the start."""
    return number + size if number < 0 else number


def chosen(indices: tuple[int, ...] | slice | None, size: int, name: str) -> tuple[int, ...]:
    """Resolve checked indices of an axis to non-negative integers; None selects all.

    Raises:
        IndexError: for an index out of range.
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
    """Group numbers into half-open intervals of consecutive ones, in ascending order."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and number <= found[-1][1]:
            found[-1] = found[-1][0], number + 1
        else:
            found.append((number, number + 1))
    return found


def contains(indices: tuple[int, ...] | slice | None, number: int) -> bool:
    """Return True if non-negative indices include a number; the axis size is not known."""
    if isinstance(indices, slice):
        stop = number + 1 if indices.stop is None else indices.stop
        return number in range(indices.start or 0, stop, indices.step or 1)
    return indices is None or number in indices


def tensor_of(values: Any) -> torch.Tensor:
    """Convert numbers to a CPU tensor, ignoring torch's default device; tensors are unchanged."""
    return values if isinstance(values, torch.Tensor) else torch.as_tensor(values, device="cpu")


def check_tensor(tensor: object, name: str) -> None:
    """Check that an argument is a tensor whose memory can be read.

    Raises:
        TypeError: if it is not a tensor, or is nested, distributed or of another subclass.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} must be a tensor, but is {type(tensor).__name__}")
    refuse_nested(tensor, name)
    if type(tensor) in _PLAIN:
        return
    if _is_distributed(tensor):
        raise TypeError(
            f"{name} is a DTensor, which is not supported; pass this rank's part, "
            f"{name}.to_local(), or use regard_experiments.distributed"
        )
    if overrides_torch_function(type(tensor)):
        raise TypeError(
            f"{name} is a {type(tensor).__name__}, whose memory need not hold its values; "
            f"convert it to a plain torch.Tensor first{_cure(tensor)}"
        )


def check_floating(tensor: object, name: str) -> None:
    """Check that an argument is a floating-point tensor of a supported dtype.

    Raises:
        TypeError: if it is not.
    """
    check_tensor(tensor, name)
    assert isinstance(tensor, torch.Tensor), "it has just been checked"
    if not tensor.is_floating_point():
        raise TypeError(f"{name} must be floating point, but is {tensor.dtype}; try {name}.float()")
    check_dtype(tensor, name)


def check_integers(tensor: torch.Tensor, name: str) -> None:
    """Check that a tensor holds integers.

    Raises:
        TypeError: if it does not.
    """
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise TypeError(f"{name} must hold integers, but is {tensor.dtype}; try {name}.long()")


def check_dtype(tensor: torch.Tensor, name: str) -> None:
    """Check that a floating-point tensor has a supported dtype.

    Raises:
        TypeError: for 8 bits or fewer, which need a scale that is not given.
    """
    if tensor.dtype not in _DTYPES:
        supported = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
        raise TypeError(
            f"{name} is {tensor.dtype}, but must be one of {supported}; multiply it by its "
            f"scale and convert it: {name}.to(torch.bfloat16)"
        )


def refuse_nested(tensor: torch.Tensor, name: str) -> None:
    """Reject a nested tensor, whose sequences have different lengths.

    Raises:
        TypeError: if it is nested.
    """
    if tensor.is_nested:
        raise TypeError(
            f"{name} is a nested tensor, which is not supported; pad the sequences to one length "
            "and hide the padding with regard.padding, or pack them and pass regard.documents"
        )


def overrides_torch_function(kind: type) -> bool:
    """Return True if a class defines its own ``__torch_function__`` and overrides are enabled."""
    own = kind.__torch_function__  # type: ignore[attr-defined]
    disabled = torch._C._disabled_torch_function_impl  # noqa: SLF001 - it has no public name
    inherited = torch.Tensor.__torch_function__.__func__  # type: ignore[attr-defined]
    if own is disabled or getattr(own, "__func__", None) is inherited:
        return False
    return torch._C._is_torch_function_enabled()  # noqa: SLF001 - it has no public name


def _is_distributed(tensor: torch.Tensor) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def _cure(tensor: torch.Tensor) -> str:
    if type(tensor).__module__ != "torch.nn.attention.bias":
        return ""
    return "; for torch's CausalBias pass mask=regard.causal(offset=0) or mask=regard.causal()"
