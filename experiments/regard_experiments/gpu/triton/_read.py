"""Readouts by the kernels: which of them compute which readouts, and in what memory.

Axes: B batch, H query heads, N = B·H of them numbered through, L queries, S keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from regard._shapes import Float
from regard._tensors import upload
from regard.backends.kernel_spec import KernelSpec, Kind
from regard.inputs import Problem
from regard_experiments.gpu.triton._inputs import Launch, power_of_two, spread_strides
from regard_experiments.gpu.triton._one_pass import take_rows
from regard_experiments.gpu.triton._partial_sums import CHUNKS, Parts, folded
from regard_experiments.gpu.triton.kernels.block_maxima import read_block_maxima
from regard_experiments.gpu.triton.kernels.columns import read_columns
from regard_experiments.gpu.triton.kernels.diagonals import read_diagonals
from regard_experiments.gpu.triton.kernels.logsumexp import read_logsumexp
from regard_experiments.gpu.triton.kernels.slices import read_slices
from regard_experiments.gpu.triton.kernels.span_sums import read_span_sums

# Rows that are multiplied from the left by one program.
_OPERANDS = 16
# Spans of keys that one program sums up.
_SPANS = 32


def read_all(
    problem: Problem,
    specs: Sequence[KernelSpec],
    logsumexp: Float[Tensor, "N L"] | None,
    columns: slice | None,
) -> list[tuple[Tensor, ...]]:
    """Compute readouts; see `read`."""
    assert columns is None or logsumexp is not None, "part of a row does not tell its log-sum-exp"
    device = problem.query.device
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        launch = Launch.of(problem, columns)
        known = _logsumexp(launch) if logsumexp is None else logsumexp.float().contiguous()
        results: dict[int, tuple[Tensor, ...]] = {}
        for numbers in _passes(specs):
            taken = _take(launch, [specs[i] for i in numbers], known)
            results.update(zip(numbers, taken, strict=True))
    return [results[i] for i in range(len(specs))]


def _passes(specs: Sequence[KernelSpec]) -> list[list[int]]:
    """Share the specs out among passes over the pattern.

    One pass over the rows takes everything but offsets, of which only the tiles along the diagonal
    are gone over, a second image, slices, spans and products from the left. What keys receive has a
    faster pass of its own, where it is the only readout.
    """
    together = [i for i, spec in enumerate(specs) if spec.kind not in _APART]
    images = [i for i in together if specs[i].kind == Kind.IMAGE]
    apart = [i for i, spec in enumerate(specs) if spec.kind in _APART]
    first = [i for i in together if i not in images[1:]]
    return [p for p in (first, *([i] for i in images[1:]), *([i] for i in apart)) if p]


def _take(launch: Launch, specs: Sequence[KernelSpec], known: Tensor) -> list[tuple[Tensor, ...]]:
    """Take the readouts of one pass."""
    kinds = {spec.kind for spec in specs}
    if kinds == {Kind.RECEIVED}:
        received = _columns(launch, known, None)
        return [(received,) for _ in specs]
    if kinds & _APART.keys():
        return [(_APART[spec.kind](launch, spec, known),) for spec in specs]
    return take_rows(launch.crowded(), specs, known)


def refine_all(
    problem: Problem, logsumexp: Float[Tensor, "N L"], coarse_above: float
) -> Float[Tensor, "N L"]:
    """Compute coarse log-sum-exps anew; see `refine`."""
    device = problem.query.device
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        given = logsumexp.float().contiguous()
        return _logsumexp(Launch.of(problem, None), given, coarse_above)


def _logsumexp(
    launch: Launch, given: Float[Tensor, "N L"] | None = None, coarse_above: float = 0.0
) -> Float[Tensor, "N L"]:
    problem = launch.problem
    result = problem.query.new_empty((launch.heads, problem.queries), dtype=torch.float32)
    read_logsumexp[(launch.heads * launch.query_blocks,)](
        **launch.arguments(),
        sink=launch.per_head(problem.sink),
        given=given,
        coarse_above=coarse_above,
        logsumexp=result,
        blocks=launch.query_blocks,
    )
    return result


def _slices(launch: Launch, spec: KernelSpec, known: Tensor) -> Tensor:
    assert spec.operand is not None, "the keys are chosen"
    weights = known.new_empty((*known.shape, spec.size))
    tiles = -(-spec.size // launch.tiles.keys)
    if tiles:
        read_slices[(launch.heads * launch.query_blocks, tiles)](
            **launch.arguments(),
            logsumexp=known,
            chosen=upload(spec.operand, known.device),
            weights=weights,
            chosen_number=spec.size,
            blocks=launch.query_blocks,
        )
    return weights


def _span_sums(launch: Launch, spec: KernelSpec, known: Tensor) -> Tensor:
    """Sum the weights of each span's keys."""
    assert spec.operand is not None, "each key has a span, or none"
    sums = known.new_empty((*known.shape, spec.size))
    groups = -(-spec.size // _SPANS)
    if groups:
        read_span_sums[(launch.heads * launch.query_blocks, groups)](
            **launch.arguments(),
            logsumexp=known,
            labels=spec.operand.to(torch.int32),
            sums=sums,
            span_number=spec.size,
            blocks=launch.query_blocks,
            SPANS=_SPANS,
        )
    return sums


def _columns(launch: Launch, known: Tensor, spec: KernelSpec | None) -> Tensor:
    """Sum the columns; or multiply from the left, if there are rows to multiply."""
    keys = launch.problem.keys
    spans = launch.spans()
    rows = 0 if spec is None else spec.size
    shape = (launch.heads, keys) if spec is None else (launch.heads, rows, keys)
    result = known.new_empty(shape)
    groups = 1 if spec is None else -(-rows // _OPERANDS)
    if groups:
        read_columns[(launch.heads * launch.key_blocks, groups)](
            **launch.arguments(),
            logsumexp=known,
            spans=spans,
            block_strides=(*spread_strides(spans[0])[:2], spans.stride(0)),
            query_blocks=launch.query_blocks,
            received=result if spec is None else None,
            operand=None if spec is None else spec.operand,
            product=None if spec is None else result,
            operand_rows=rows,
            blocks=launch.key_blocks,
            OPERANDS=_OPERANDS,
            BLOCKS=min(1024, power_of_two(launch.query_blocks)),
        )
    return result


def _diagonals(launch: Launch, spec: KernelSpec, known: Tensor) -> Tensor:
    """Average the weights by how far back they lie."""
    offsets = spec.size
    chunks = min(CHUNKS, launch.query_blocks)
    sums = known.new_zeros((launch.heads, chunks, offsets))
    counts = torch.zeros_like(sums, dtype=torch.int32)
    read_diagonals[(launch.heads * chunks,)](
        **launch.arguments(),
        logsumexp=known,
        sums=sums,
        counts=counts,
        offset_number=offsets,
        chunks=chunks,
        blocks=launch.query_blocks,
    )
    weight, count = (folded(partial, Parts.of_sum(chunks))[:, 0] for partial in (sums, counts))
    return (weight / count.clamp_min(1)).float()


def _block_maxima(launch: Launch, spec: KernelSpec, known: Tensor) -> Tensor:
    """Find the largest weight of each cell of a grid."""
    rows, columns = spec.shape
    parts = Parts.of_image(launch.problem.queries, spec.height, rows, launch.tiles.queries)
    maxima = known.new_zeros((launch.heads, launch.query_blocks, parts.slots, columns))
    read_block_maxima[(launch.heads * launch.query_blocks,)](
        **launch.arguments(),
        logsumexp=known,
        maxima=maxima,
        cell_columns=columns,
        height=spec.height // rows,
        width=spec.width // columns,
        blocks=launch.query_blocks,
        SLOTS=parts.slots,
    )
    base = upload(torch.tensor(parts.base, device="cpu"), known.device)[:, None]
    row = (base + torch.arange(parts.slots, device=known.device)).reshape(1, -1, 1)
    cells = known.new_zeros((launch.heads, rows + parts.slots, columns))
    maxima = maxima.flatten(1, 2)
    cells.scatter_reduce_(1, row.expand_as(maxima), maxima, "amax")
    return cells[:, :rows].masked_fill(cells[:, :rows] == torch.inf, torch.nan)


# What a pass of its own computes; all other kinds share the pass over the rows.
_APART: dict[Kind, Callable[[Launch, KernelSpec, Tensor], Tensor]] = {
    Kind.LOGSUMEXP: lambda _launch, _spec, known: known,
    Kind.WEIGHTS: _slices,
    Kind.MAX_BLOCKS: lambda launch, spec, known: _block_maxima(launch.crowded(), spec, known),
    Kind.SPANS: lambda launch, spec, known: _span_sums(launch.crowded(), spec, known),
    Kind.OFFSETS: _diagonals,
    Kind.LEFT_PRODUCT: lambda launch, spec, known: _columns(launch.crowded(), known, spec),
}
