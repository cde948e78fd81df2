"""Taking readouts of a pattern: by the kernels what they know, by streaming blocks the rest.

The kernels are those in C++ on a CPU and those in Triton on a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from regard.backends import native
from regard.backends.gpu import triton
from regard.pattern.stream import stream
from regard.problem.finite import without_autocast

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from torch import Tensor

    from regard.backends.kernel_spec import KernelSpec
    from regard.pattern.readout import Readout, Sizes
    from regard.problem import Problem


def take(
    readouts: Sequence[Readout[Any, Any]],
    problem: Problem,
    sizes: Sizes,
    logsumexp: Tensor | None,
    columns: slice | None,
) -> tuple[Any, ...]:
    """Take several readouts, each in its place; within some keys, if columns are given.

    Args:
        readouts: what is asked for.
        problem: query, key, mask and the rest.
        sizes: of the pattern.
        logsumexp: of each row, heads numbered through; None to work it out on the way.
        columns: the keys to stay within, for which the log-sum-exp must be given.
    """
    reader, orders = _orders(readouts, problem, sizes)
    from_kernel = iter(
        reader.read(problem, list(orders.values()), logsumexp, columns) if orders else ()
    )
    rest = [readout for i, readout in enumerate(readouts) if i not in orders]
    streamed = iter(_streamed(rest, problem, sizes, logsumexp, columns) if rest else ())
    return tuple(
        readout.from_kernel(next(from_kernel), sizes) if i in orders else next(streamed)
        for i, readout in enumerate(readouts)
    )


def _orders(
    readouts: Sequence[Readout[Any, Any]], problem: Problem, sizes: Sizes
) -> tuple[ModuleType, dict[int, KernelSpec]]:
    """Find out which kernels serve, and which readouts they compute, by their index, and how."""
    reader = triton if problem.query.device.type == "cuda" else native
    if reader.objection_to_reading(problem) or 0 in (*sizes.leading, sizes.queries, sizes.keys):
        return reader, {}
    orders = ((i, readout.kernel_spec(sizes)) for i, readout in enumerate(readouts))
    known = {i: order for i, order in orders if order is not None}
    return reader, {i: order for i, order in known.items() if not reader.objection_to(order)}


def _streamed(
    readouts: Sequence[Readout[Any, Any]],
    problem: Problem,
    sizes: Sizes,
    logsumexp: Tensor | None,
    columns: slice | None,
) -> list[Any]:
    states = [readout.begin(sizes) for readout in readouts]
    with torch.no_grad(), without_autocast(sizes.device):
        for block in stream(problem, logsumexp, columns):
            for readout, state in zip(readouts, states, strict=True):
                readout.add(state, block)
    return [r.finish(state, sizes) for r, state in zip(readouts, states, strict=True)]
