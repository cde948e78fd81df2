"""What a GPU can do at most, as measured, and the least time that a readout could take by that.

A weight costs 2·D operations of the matrix units (its score), an exponential, and some operations
of the float32 units: one to scale the score and subtract the log-sum-exp, and what each readout
adds. The units work side by side, so that the floor is the time of the busiest, or of the memory
that moves query, key and result.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from benchmarks.cases import Case
from benchmarks.gpu_clock import seconds

_ELEMENTS, _STEPS = 4096, 4096
_PROGRAMS = 132 * 16  # of four warps: enough to fill the GPU in whole rounds
# Float32 operations a weight beyond the first, at the least: a product that is added to a sum is
# one. Distances need the sum of the row too; a key is ranked where it beats the weakest.
OPERATIONS = {
    "received": 1,
    "entropy": 1,
    "distance": 2,
    "max": 1,
    "mass": 1,
    "top 8": 1,
    "image 512 × 512": 1,
    "offsets 64": 0,  # they are few
}


@dataclass(frozen=True)
class Ceilings:
    """What was measured, a second."""

    products: float
    """Floating-point operations of a bfloat16 matrix product."""
    exponentials: float
    operations: float
    """Of float32 numbers; a product and a sum at once are one."""
    bytes: float
    """Read and written."""

    def floor(self, shape: Case, names: Iterable[str]) -> float:
        """Compute the least seconds that readouts together could take."""
        names = set(names)
        weights = shape.visible
        if names == {"offsets 64"}:
            weights = 64 * shape.length * shape.batch * shape.heads
        operations = 1 + sum(OPERATIONS[name] for name in names)
        return max(
            2 * shape.dim * weights / self.products,
            weights / self.exponentials,
            weights * operations / self.operations,
            2 * shape.elements / self.bytes,
        )


def measured() -> Ceilings:
    """Measure this GPU."""
    left, right = torch.randn(2, 8192, 8192, device="cuda", dtype=torch.bfloat16).unbind()
    numbers = torch.rand(_PROGRAMS * _ELEMENTS, device="cuda")
    source = torch.empty(2**30, device="cuda")
    target = torch.empty_like(source)
    steps = _PROGRAMS * _ELEMENTS * _STEPS
    return Ceilings(
        products=2 * 8192**3 / seconds(lambda: left @ right),
        exponentials=steps / seconds(lambda: _work(numbers, exponential=True)),
        operations=steps / seconds(lambda: _work(numbers, exponential=False)),
        bytes=2 * source.nbytes / seconds(lambda: target.copy_(source)),
    )


def _work(numbers: torch.Tensor, *, exponential: bool) -> None:
    _repeated[(_PROGRAMS,)](numbers, exponential, _ELEMENTS, _STEPS)


@triton.jit
def _repeated(numbers, EXPONENTIAL: tl.constexpr, ELEMENTS: tl.constexpr, STEPS: tl.constexpr):
    at = tl.program_id(0) * ELEMENTS + tl.arange(0, ELEMENTS)
    x = tl.load(numbers + at)
    for _ in range(STEPS):
        x = tl.exp2(-x) if EXPONENTIAL else x * 0.999 + 0.001
    tl.store(numbers + at, x)
