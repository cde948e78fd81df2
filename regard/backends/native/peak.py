"""The machine's peak rates, as the native library measures it with torch's threads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from regard.backends.native import library
from regard.backends.native._arguments import CODES


def peak_flops(dtype: torch.dtype) -> float:
    """Operations a second on numbers of a dtype, as the instruction set in use multiplies them.

    float16 is widened to float32, and so is bfloat16 where there are no dot products of it.
    """
    return _measure("regard_peak_flops", CODES[dtype])


def peak_bandwidth() -> float:
    """Bytes a second read from memory."""
    return _measure("regard_peak_bandwidth")


def _measure(name: str, *arguments: int) -> float:
    loaded = library.load()
    assert loaded is not None, "why_missing() sees to it"
    function: Callable[..., float] = getattr(loaded, name)
    function.restype = ctypes.c_double  # type: ignore[attr-defined]
    rate = function(*arguments, ctypes.c_int64(torch.get_num_threads()))
    if rate == 0:
        raise MemoryError(f"no memory for {name} to measure in")
    return rate
