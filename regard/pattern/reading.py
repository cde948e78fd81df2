"""Takes readouts of a pattern: by kernels if they support them, else from streamed blocks.

The kernels are those in C++ on a CPU; on another device, those of its extension, if there is one.

Axes: N = B·H flattened heads, L queries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard._contexts import abstract_reason
from regard._shapes import Float
from regard.backends import native, reader_of
from regard.backends.extensions import Reader, extension_of
from regard.backends.kernel_spec import Factors, KernelSpec, Kind
from regard.errors import Error
from regard.inputs import Problem
from regard.inputs.finite import without_autocast
from regard.pattern.internal_readouts import LogSumExp
from regard.pattern.readout import Readout, Sizes
from regard.pattern.stream import MOST_LOGSUMEXP, is_coarse, multiplied, stream

# The kernels' readouts of weights times factors; another one is streamed.
_WITH_FACTORS = {
    *(Kind.LARGEST, Kind.WEIGHTS, Kind.MASS, Kind.SPANS, Kind.RECEIVED, Kind.MEAN_RECEIVED),
    *(Kind.LEFT_PRODUCT, Kind.OFFSETS, Kind.IMAGE, Kind.LOGSUMEXP),
}


def require_numbers(problem: Problem) -> None:
    """Raise an `Error` if query and key hold no numbers, as under a trace."""
    why = abstract_reason(problem.query, problem.key)
    if why is not None:
        raise Error(
            f"a pattern's weights can't be read under {why}; return query and key, or the "
            "pattern, and read it afterwards"
        )


def sizes_of(problem: Problem) -> Sizes:
    """Return the sizes of a problem's pattern."""
    return Sizes(
        problem.leading,
        problem.queries,
        problem.keys,
        problem.exact_dtype,
        problem.query.device,
        problem.group,
    )


def take(
    readouts: Sequence[Readout[Any, Any]],
    problem: Problem,
    sizes: Sizes,
    logsumexp: Tensor | None = None,
    columns: slice | None = None,
    *,
    factors: Factors | None = None,
    by: Callable[[Sequence[KernelSpec]], list[tuple[Tensor, ...]]] | None = None,
) -> tuple[Any, ...]:
    """Take several readouts; return their results in order.

    Args:
        readouts: the readouts.
        problem: the checked arguments of attention.
        sizes: the sizes of the pattern.
        logsumexp: of each row, ``(N, L)``; None to compute it in the same pass.
        columns: a range of keys to restrict the pass to; it requires `logsumexp`. None for all.
        factors: what the weights are multiplied by before they are read; None for 1.
        by: a function that computes the kernels' readouts of all queries; None for the reader of
            the device.
    """
    restricted = {i: readout.restricted(sizes.queries) for i, readout in enumerate(readouts)}
    apart = {i: part for i, part in restricted.items() if part is not None}
    if apart:
        return _take_separately(readouts, apart, problem, sizes, logsumexp, columns, factors, by)
    if factors is None:
        reader, specs = _kernel_specs(readouts, problem, sizes)
    else:
        reader, specs = _specs_of_factors(readouts, problem, sizes, factors)
    rest = [readout for i, readout in enumerate(readouts) if i not in specs]
    requests = list(specs.values())
    if rest and logsumexp is None and reader is not None:
        # Streamed readouts are equal bit for bit, whatever else is read or was known before.
        requests.append(KernelSpec(kind=Kind.LOGSUMEXP, shape=(sizes.queries,)))
    computed: list[tuple[Tensor, ...]] = []
    if requests and reader:
        if factors is not None:
            computed = native.read(problem, requests, logsumexp, columns, factors)
        else:
            computed = by(requests) if by else reader.read(problem, requests, logsumexp, columns)
    if len(requests) > len(specs):
        (logsumexp,) = computed.pop()
    from_kernel = iter(computed)
    streamed = iter(_streamed(rest, problem, sizes, logsumexp, columns, factors) if rest else ())
    return tuple(
        readout.from_kernel(next(from_kernel), sizes) if i in specs else next(streamed)
        for i, readout in enumerate(readouts)
    )


def are_streamed(readouts: Sequence[Readout[Any, Any]], problem: Problem) -> bool:
    """Whether kernels do not compute some of the readouts, so that blocks are streamed."""
    _, specs = _kernel_specs(readouts, problem, sizes_of(problem))
    return len(specs) < len(readouts)


def attend_and_take(
    readouts: Sequence[Readout[Any, Any]], problem: Problem
) -> tuple[Float[Tensor, "B H L Dv"], tuple[Any, ...]]:
    """Compute the context by the kernels on a CPU, and in the same pass readouts.

    Args:
        readouts: the readouts; those that the kernels do not support take another pass.
        problem: a problem that the kernels support and that needs no gradients.

    Returns:
        The context, and the result of each readout.
    """
    sizes = sizes_of(problem)
    whole = [i for i, r in enumerate(readouts) if r.restricted(sizes.queries) is None]
    _, found = _kernel_specs([readouts[i] for i in whole], problem, sizes)
    specs = {whole[place]: spec for place, spec in found.items()}
    context, logsumexp, computed = native.run_and_read(problem, list(specs.values()))
    from_kernel = dict(zip(specs, computed, strict=True))
    rest = [readout for i, readout in enumerate(readouts) if i not in specs]
    known = logsumexp.reshape(sizes.heads, sizes.queries)
    others = iter(take(rest, problem, sizes, known) if rest else ())
    return context, tuple(
        readout.from_kernel(from_kernel[i], sizes) if i in specs else next(others)
        for i, readout in enumerate(readouts)
    )


def take_with_context(
    readouts: Sequence[Readout[Any, Any]], problem: Problem
) -> tuple[Float[Tensor, "B H L Dv"] | None, tuple[Any, ...]]:
    """Take readouts, equal bit for bit to those of `take`, and in the same pass the context.

    Args:
        readouts: the readouts.
        problem: a problem that the kernels on a CPU support and that needs no gradients.

    Returns:
        The context, or None if the kernels support none of the readouts; and the results.
    """
    contexts: list[Tensor] = []

    def attend(specs: Sequence[KernelSpec]) -> list[tuple[Tensor, ...]]:
        context, _, computed = native.run_and_read(problem, specs, known=False)
        contexts.append(context)
        return computed

    results = take(readouts, problem, sizes_of(problem), by=attend)
    return next(iter(contexts), None), results


def refined(problem: Problem, logsumexp: Float[Tensor, "N L"]) -> Float[Tensor, "N L"]:
    """Recompute large log-sum-exps of a library from the dot products that the pattern uses.

    A library rounds its products differently; for large scores this changes the weights.

    Args:
        problem: the checked arguments of attention.
        logsumexp: of each row, ``(N, L)``.
    """
    has_weights = logsumexp.numel() > 0 and problem.keys > 0
    extension = extension_of(problem.query.device)
    if has_weights and extension and not extension.reader.objection_to_reading(problem):
        return extension.reader.refine(problem, logsumexp, MOST_LOGSUMEXP)  # no synchronization
    coarse = is_coarse(logsumexp)
    if not bool(coarse.any()):
        return logsumexp
    (own,) = take([LogSumExp()], problem, sizes_of(problem))
    return own.to(logsumexp.dtype).where(coarse, logsumexp)


def _take_separately(
    readouts: Sequence[Readout[Any, Any]],
    apart: Mapping[int, tuple[Readout[Any, Any], Tensor]],
    problem: Problem,
    sizes: Sizes,
    logsumexp: Tensor | None,
    columns: slice | None,
    factors: Factors | None,
    by: Callable[[Sequence[KernelSpec]], list[tuple[Tensor, ...]]] | None,
) -> tuple[Any, ...]:
    """Take each readout of chosen queries in a pass of its own, and the rest in one pass."""
    rest = [readout for i, readout in enumerate(readouts) if i not in apart]
    options: dict[str, Any] = {"factors": factors, "by": by}
    together = iter(take(rest, problem, sizes, logsumexp, columns, **options) if rest else ())

    def of_queries(readout: Readout[Any, Any], index: Tensor) -> Any:
        index = index.to(sizes.device)
        known = None if logsumexp is None else logsumexp[:, index]
        fewer = replace(sizes, queries=index.numel())
        own = None if factors is None else factors.mapped(lambda t: t[:, :, index], lambda t: t)
        return take([readout], problem.at(index), fewer, known, columns, factors=own)[0]

    return tuple(
        of_queries(*apart[i]) if i in apart else next(together) for i in range(len(readouts))
    )


def _kernel_specs(
    readouts: Sequence[Readout[Any, Any]], problem: Problem, sizes: Sizes
) -> tuple[Reader | None, dict[int, KernelSpec]]:
    """Return the kernels, if any, and for each readout that they support its index and spec."""
    reader = reader_of(problem.query.device)
    if reader.objection_to_reading(problem) or 0 in (*sizes.leading, sizes.queries, sizes.keys):
        return None, {}
    specs = ((i, readout.kernel_spec(sizes)) for i, readout in enumerate(readouts))
    known = {i: spec for i, spec in specs if spec is not None}
    return reader, {i: spec for i, spec in known.items() if not reader.objection_to(spec, problem)}


def _specs_of_factors(
    readouts: Sequence[Readout[Any, Any]], problem: Problem, sizes: Sizes, factors: Factors
) -> tuple[Reader | None, dict[int, KernelSpec]]:
    """Return the same for weights times factors, which the kernels on a CPU know."""
    if not problem.query.is_cpu or not factors.is_finite:
        return None, {}
    reader, specs = _kernel_specs(readouts, problem, sizes)
    ranked = {
        i: replace(spec, kind=Kind.LARGEST) if spec.kind is Kind.TOP else spec
        for i, spec in specs.items()
    }
    return reader, {i: spec for i, spec in ranked.items() if spec.kind in _WITH_FACTORS}


def _streamed(
    readouts: Sequence[Readout[Any, Any]],
    problem: Problem,
    sizes: Sizes,
    logsumexp: Tensor | None,
    columns: slice | None,
    factors: Factors | None,
) -> list[Any]:
    states = [readout.begin(sizes) for readout in readouts]
    with torch.no_grad(), without_autocast(sizes.device):
        for weights in stream(problem, logsumexp, columns):
            block = weights if factors is None else multiplied(weights, factors, problem)
            for readout, state in zip(readouts, states, strict=True):
                readout.add(state, block)
    return [r.finish(state, sizes) for r, state in zip(readouts, states, strict=True)]
