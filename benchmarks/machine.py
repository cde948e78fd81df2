"""Where a run takes place, and what this machine can do at most."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from regard.backends.native.peak import peak_bandwidth, peak_flops
from regard.cli.measure import machine


def describe() -> None:
    """Print it."""
    for name, value in machine().items():
        print(f"{name:15}{value}")
    print(f"peak float32   {_median(lambda: peak_flops(torch.float32)) / 1e9:.0f} GFLOP/s")
    print(f"peak bfloat16  {_median(lambda: peak_flops(torch.bfloat16)) / 1e9:.0f} GFLOP/s")
    print(f"peak memory    {_median(peak_bandwidth) / 1e9:.1f} GB/s read")
    print("\nShares are of the peak as measured again in the same rounds; all figures are medians.")
    print("Targets are such shares, and to be slower than no other library that is installed.")


def _median(measure: Callable[[], float]) -> float:
    return statistics.median(measure() for _ in range(9))
