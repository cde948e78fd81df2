"""The self-check of a kernel on a GPU: a small problem, held against the written-out computation.

No GPU has run these kernels in the project's own tests. So each computes a small problem when it is
first used in a process, on a device and in a dtype; one that fails there is refused from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import RLock

import torch
from torch import Tensor

from regard._contexts import is_concrete
from regard.backends import eager
from regard.inputs import Problem, Scoring, check
from regard.masks import causal
from regard_experiments.gpu import hardware

TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 3e-3}
"""How far a context may be off, absolute below 1 and relative above: as far as rounding to the
dtype takes it, or to TF32 for float32. The log-sum-exp is held to the same."""

_TOKENS, _DIM = 48, 32
_results: dict[Hashable, str | None] = {}
_lock = RLock()


def attention_failure(
    backend: str, run: Callable[[Problem], tuple[Tensor, Tensor | None]], problem: Problem
) -> str | None:
    """Say why a backend's kernel is not to be trusted with a problem, or None.

    Where numbers cannot be read, as under torch.compile or torch.func, nothing is checked.
    """
    if not is_concrete(problem.query):
        return None
    device, dtype = problem.query.device, problem.query.dtype

    def compare() -> str | None:
        small = small_problem(device, dtype)
        exact = eager.run(small.cast(torch.float64))
        names = ("context", "log-sum-exp")
        for name, result, expected in zip(names, run(small), exact, strict=True):
            assert result is not None and expected is not None, "GPU kernels return both"  # noqa: PT018 - one invariant
            why = difference(name, result, expected, TOLERANCE[dtype])
            if why is not None:
                return why
        return None

    return once((backend, device, dtype), device, compare)


def once(key: Hashable, device: torch.device, compare: Callable[[], str | None]) -> str | None:
    """Compare once per process and key: say what deviates or fails, and on which device."""
    if key not in _results:
        with _lock:
            if key not in _results:
                _results[key] = _compared(device, compare)
    return _results[key]


def _compared(device: torch.device, compare: Callable[[], str | None]) -> str | None:
    try:
        with torch.no_grad():
            why = compare()
    except torch.OutOfMemoryError:  # which says nothing of the kernel
        raise
    except Exception as error:  # noqa: BLE001 - whatever stops a kernel rules it out
        why = f"it fails with {type(error).__name__}: {error}"
    return None if why is None else f"in a self-check on {hardware.name(device)} {why}"


def difference(name: str, result: Tensor, exact: Tensor, tolerance: float) -> str | None:
    """Say how far a result is off, if that is more than the tolerance."""
    error = (result.double() - exact).abs() / exact.abs().clamp_min(1)
    error = error.masked_fill(result == exact, 0)  # ∞ − ∞ is NaN
    largest = float(error.nan_to_num(nan=torch.inf).max())
    if largest <= tolerance:
        return None
    return f"its {name} is off by {largest:.2g}, more than {tolerance:.2g}"


def small_problem(device: torch.device, dtype: torch.dtype) -> Problem:
    """Make a causal problem of two heads that share their keys, always of the same numbers."""
    generator = torch.Generator(device="cpu").manual_seed(0)
    query, key, value = (
        torch.randn(1, heads, _TOKENS, _DIM, generator=generator, device="cpu").to(device, dtype)
        for heads in (2, 1, 1)
    )
    return check(query, key, value, Scoring(mask=causal()))
