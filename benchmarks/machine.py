"""Where a run takes place, and what this machine can do at most."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
from collections.abc import Callable
from pathlib import Path

import torch

from regard.backends.native import library
from regard.backends.native.peak import peak_bandwidth, peak_flops


def describe() -> None:
    """Print it."""
    loaded = library.load()
    assert loaded is not None, "the caller checked that it is there"
    print(f"processor      {_processor()}, {os.cpu_count()} logical cores")
    print(f"system         {platform.platform()}, Python {platform.python_version()}")
    print(f"torch          {torch.__version__}, {torch.get_num_threads()} threads")
    print(
        f"regard         {importlib.metadata.version('regard')}, "
        f"instructions {loaded.regard_instructions().decode()}"
    )
    print(f"peak float32   {_median(lambda: peak_flops(torch.float32)) / 1e9:.0f} GFLOP/s")
    print(f"peak bfloat16  {_median(lambda: peak_flops(torch.bfloat16)) / 1e9:.0f} GFLOP/s")
    print(f"peak memory    {_median(peak_bandwidth) / 1e9:.1f} GB/s read")
    print("\nShares are of the peak as measured again in the same rounds; all figures are medians.")
    print("Targets are such shares, and to be slower than no other library that is installed.")


def _median(measure: Callable[[], float]) -> float:
    return statistics.median(measure() for _ in range(9))


def _processor() -> str:
    """The processor's name, which Python does not know everywhere."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
