"""The machine's peak rates, measured by the native library on torch's threads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from regard.backends.native import library
from regard.backends.native._arguments import CODES


def peak_flops(dtype: torch.dtype) -> float:
    """Measure the floating-point operations per second in a dtype, with the instruction set in use.

    float16 is widened to float32, as is bfloat16 without its dot-product instructions.

    Args:
        dtype: one of `DTYPES`.

    Raises:
        MemoryError: if there is no memory for the measurement.
    """
    return _measure("regard_peak_flops", CODES[dtype])


def peak_bandwidth() -> float:
    """Measure the memory bandwidth of reads, in bytes per second.

    Raises:
        MemoryError: if there is no memory for the measurement.
    """
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
