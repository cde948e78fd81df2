"""Readouts by the kernels, any number of them in one pass, and the comparison of two patterns.

Axes: B batch, H query heads, N = B·H flattened heads, L queries, S keys, Dv head dimension of
value.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from regard._contexts import in_memory
from regard._shapes import Float
from regard.backends.kernel_spec import Divergence, Factors, KernelSpec, Kind
from regard.backends.native._arguments import Arguments, pointers, vectors
from regard.backends.native._forward import like
from regard.backends.native._structs import DIVERGENCE, FACTORS, READOUT, READOUTS, TENSOR
from regard.backends.native.library import call
from regard.inputs import Problem

_DIVERGENCES = {"kl": 0, "js": 1, "tv": 2}


def read(
    problem: Problem,
    specs: Sequence[KernelSpec],
    logsumexp: Float[Tensor, "N L"] | None,
    columns: slice | None,
    factors: Factors | None = None,
) -> list[tuple[Tensor, ...]]:
    """Compute readouts: a float32 tensor each, for a ranking also the positions.

    Args:
        problem: a problem without objections to reading.
        specs: the readouts.
        logsumexp: of each row; None to compute it first.
        columns: a range of keys to restrict the pass to; it requires `logsumexp`. None for all.
        factors: finite ones, if not the weights are read.
    """
    results = _results(problem, specs)
    known = None if logsumexp is None else logsumexp.float().contiguous()
    if factors is not None and factors.dot is not None:
        groups = factors.dot[1].shape[1]
        if groups != problem.key.shape[1]:  # of each query head
            problem = replace(problem, key=problem.repeated(problem.key))
    packed = Arguments.of(problem).pack()
    table, _kept_factors = _pack_factors(factors)
    request, _kept = _request(problem, specs, results, known, columns, table)
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
        if spec.kind in (Kind.TOP, Kind.LARGEST):
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
    factors: int = 0,
) -> tuple[bytes, Sequence[int]]:
    """Pack a request for readouts; also return a buffer to keep alive while it is used."""
    table = array("q", b"".join(map(_pack, specs, results)))
    span = slice(0, problem.keys) if columns is None else columns
    known = 0 if logsumexp is None else logsumexp.data_ptr()
    ends = known, span.start, span.stop
    return READOUTS.pack(*ends, len(specs), table.buffer_info()[0], factors), table


def _pack_factors(factors: Factors | None) -> tuple[int, object]:
    """Return the address of ``regard_factors``, 0 for none, and what to keep alive meanwhile."""
    if factors is None:
        return 0, None
    dot = () if factors.dot is None else factors.dot
    single = (factors.largest, factors.odds, factors.key)
    kept = [None if t is None else in_memory(t).contiguous() for t in single]
    kept[1:] = [None if t is None else t.float() for t in kept[1:]]
    products = [in_memory(t.float()).contiguous() for t in dot]
    packed = [vectors(t) for t in products] or [(0,) * 4] * 2
    dim = products[0].shape[-1] if products else 0
    table = array("b", FACTORS.pack(*pointers(*kept), dim, *packed[0], *packed[1]))
    return table.buffer_info()[0], (table, kept, products)


def _pack(spec: KernelSpec, result: tuple[Tensor, ...]) -> bytes:
    positions = result[1] if len(result) > 1 else None
    return READOUT.pack(
        spec.kind,
        *pointers(result[0], positions, spec.operand),
        *(spec.size, spec.columns, spec.height, spec.width),
    )
