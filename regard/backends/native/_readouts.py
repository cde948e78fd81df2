"""Readouts by the kernels, any number of them in one pass, and the comparison of two patterns.

Axes: B batch, H query heads, N = B·H flattened heads, L queries, S keys, Dv head dimension of
value.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from regard._shapes import Float
from regard.backends.kernel_spec import Divergence, KernelSpec, Kind
from regard.backends.native._arguments import Arguments, pointers, vectors
from regard.backends.native._forward import like
from regard.backends.native._structs import DIVERGENCE, READOUT, READOUTS, TENSOR
from regard.backends.native.library import call
from regard.inputs import Problem

_DIVERGENCES = {"kl": 0, "js": 1, "tv": 2}


def read(
    problem: Problem,
    specs: Sequence[KernelSpec],
    logsumexp: Float[Tensor, "N L"] | None,
    columns: slice | None,
) -> list[tuple[Tensor, ...]]:
    """Compute readouts: a float32 tensor each, for a ranking also the positions.

    Args:
        problem: a problem without objections to reading.
        specs: the readouts.
        logsumexp: of each row; None to compute it first.
        columns: a range of keys to restrict the pass to; it requires `logsumexp`. None for all.
    """
    results = _results(problem, specs)
    known = None if logsumexp is None else logsumexp.float().contiguous()
    packed = Arguments.of(problem).pack()
    request, _kept = _request(problem, specs, results, known, columns)
    call("regard_read", packed.numbers, request)
    return results


def run_and_read(
    problem: Problem, specs: Sequence[KernelSpec], *, known: bool = True
) -> tuple[Float[Tensor, "B H L Dv"], Float[Tensor, "B H L"], list[tuple[Tensor, ...]]]:
    """Compute context, log-sum-exp and readouts, in one pass if possible.

    They are bitwise equal to those of the operator and of `read`.

    Args:
        problem: a problem without objections that needs no gradients.
        specs: the readouts.
        known: whether the readouts equal those of `read` with this log-sum-exp; else without one.
    """
    inputs = Arguments.of(problem)
    context, logsumexp = like(*inputs)
    results = _results(problem, specs)
    packed = inputs.pack()
    request, _kept = _request(problem, specs, results, logsumexp if known else None, None)
    result = TENSOR.pack(*vectors(context))
    call("regard_forward_and_read", packed.numbers, result, logsumexp.data_ptr(), request)
    return context, logsumexp, results


def compare(
    one: Problem,
    other: Problem,
    logsumexps: tuple[Float[Tensor, "N L"], Float[Tensor, "N L"]],
    kind: Divergence,
) -> Float[Tensor, "N L"]:
    """Compare each row of one pattern with that of another, in float64.

    Args:
        one: a problem.
        other: another one; `objection_to_comparing` returns None for both.
        logsumexps: of the rows of each.
        kind: KL divergence, Jensen–Shannon divergence or total variation distance.
    """
    result = torch.empty(logsumexps[0].shape, dtype=torch.float64, device="cpu")
    known = [logsumexp.float().contiguous() for logsumexp in logsumexps]
    packed = [Arguments.of(problem).pack() for problem in (one, other)]
    request = DIVERGENCE.pack(_DIVERGENCES[kind], *pointers(*known, result))
    call("regard_compare", *(each.numbers for each in packed), request)
    return result


def _results(problem: Problem, specs: Sequence[KernelSpec]) -> list[tuple[Tensor, ...]]:
    """Allocate the tensors that the kernels write."""
    heads = torch.Size(problem.heads).numel()
    results: list[tuple[Tensor, ...]] = []
    for spec in specs:
        shape = (heads, *spec.shape)
        # Weights are accumulated where a key is visible; other results are written completely.
        make = torch.zeros if spec.kind is Kind.WEIGHTS else torch.empty
        result = make(shape, dtype=torch.float32, device="cpu") if spec.into is None else spec.into
        if spec.kind is Kind.TOP:
            results.append((result, torch.empty(shape, dtype=torch.int64, device="cpu")))
        else:
            results.append((result,))
    return results


def _request(
    problem: Problem,
    specs: Sequence[KernelSpec],
    results: Sequence[tuple[Tensor, ...]],
    logsumexp: Tensor | None,
    columns: slice | None,
) -> tuple[bytes, Sequence[int]]:
    """Pack a request for readouts; also return a buffer to keep alive while it is used."""
    table = array("q", b"".join(map(_pack, specs, results)))
    span = slice(0, problem.keys) if columns is None else columns
    known = 0 if logsumexp is None else logsumexp.data_ptr()
    return READOUTS.pack(known, span.start, span.stop, len(specs), table.buffer_info()[0]), table


def _pack(spec: KernelSpec, result: tuple[Tensor, ...]) -> bytes:
    positions = result[1] if len(result) > 1 else None
    return READOUT.pack(
        spec.kind,
        *pointers(result[0], positions, spec.operand),
        *(spec.size, spec.columns, spec.height, spec.width),
    )
