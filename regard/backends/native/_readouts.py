"""Readouts by the kernels: reductions of the weights, any number of them in one pass.

Axes: B batch, H query heads, N = B·H of them numbered through, L queries, S keys.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from regard._shapes import Float
from regard.backends.kernel_spec import KernelSpec, Kind
from regard.backends.native._arguments import Arguments
from regard.backends.native.library import call
from regard.problem import Problem


def read(
    problem: Problem,
    specs: Sequence[KernelSpec],
    logsumexp: Float[Tensor, "N L"] | None,
    columns: slice | None,
) -> list[tuple[Tensor, ...]]:
    """Compute readouts: a float32 tensor each, and the positions where keys are ranked.

    Args:
        problem: one that `objection_to_reading` has nothing against.
        specs: the reductions.
        logsumexp: of each row; None to compute it on the way.
        columns: stay within these keys, for which the log-sum-exp must be given.
    """
    batch, heads = problem.heads
    results: list[tuple[Tensor, ...]] = []
    for spec in specs:
        shape = (batch * heads, *spec.shape)
        # Chosen weights are written where a key is visible, everything else in full.
        make = torch.zeros if spec.kind is Kind.WEIGHTS else torch.empty
        result = make(shape, dtype=torch.float32, device="cpu")
        if spec.kind is Kind.TOP:
            results.append((result, torch.empty(shape, dtype=torch.int64, device="cpu")))
        else:
            results.append((result,))
    pairs = zip(specs, results, strict=True)
    table = array("q", [number for pair in pairs for number in _pack(*pair)])
    known = None if logsumexp is None else logsumexp.float().contiguous()
    span = slice(0, problem.keys) if columns is None else columns
    readouts = (
        0 if known is None else known.data_ptr(),
        *(span.start, span.stop),
        *(len(specs), table.buffer_info()[0]),
    )
    packed = Arguments.of(problem).pack()
    call("regard_read", packed.numbers, readouts)
    return results


def _pack(spec: KernelSpec, result: tuple[Tensor, ...]) -> tuple[int, ...]:
    """Lay a readout out as ``regard_readout``."""
    return (
        spec.kind,
        result[0].data_ptr(),
        result[1].data_ptr() if len(result) > 1 else 0,
        0 if spec.operand is None else spec.operand.data_ptr(),
        *(spec.size, spec.columns, spec.height, spec.width),
    )
