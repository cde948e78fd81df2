"""The self-check of the readouts' kernels: each kind of a small pattern, from its weights.

Axes: N heads numbered through, L queries, S keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from regard._contexts import is_concrete
from regard._definitions import divergence_of
from regard._shapes import Float
from regard.backends.kernel_spec import Divergence, KernelSpec, Kind
from regard.inputs import Problem
from regard.steps import written_out
from regard_experiments.gpu.self_check import difference, once, small_problem
from regard_experiments.gpu.triton._compare import compare_all
from regard_experiments.gpu.triton._read import read_all, refine_all

TOLERANCE = 1e-4
"""How far a readout may be off: sums of some dozens of float32 numbers near 1."""


def failure(problem: Problem, kinds: Sequence[Kind]) -> str | None:
    """Say why the kernel of some kinds is not to be trusted with a problem, or None.

    Kinds that are read together are a kernel of their own, and are compared together.
    """
    if not is_concrete(problem.query):
        return None
    device, dtype, together = problem.query.device, problem.query.dtype, frozenset(kinds)

    def compare() -> str | None:
        small = small_problem(device, dtype)
        steps = dict(written_out(small.cast(torch.float64)))
        names = ("scaled", "masked", "weights", "logsumexp")
        cases = _cases(*(steps[name].flatten(0, 1) for name in names))
        some = {kind: cases[kind] for kind in sorted(together)}
        results = read_all(small, [spec for spec, _ in some.values()], None, None)
        for (kind, (_, exact)), (result, *_) in zip(some.items(), results, strict=True):
            why = difference(f"readout {kind.name.lower()}", result, exact, TOLERANCE)
            if why is not None:
                return why
        return None

    return once(("triton", together, device, dtype), device, compare)


def failure_to_refine(problem: Problem) -> str | None:
    """Say why the kernel is not to be trusted that replaces log-sum-exps, or None."""
    if not is_concrete(problem.query):
        return None
    device, dtype = problem.query.device, problem.query.dtype

    def compare() -> str | None:
        small = small_problem(device, dtype)
        exact = dict(written_out(small.cast(torch.float64)))["logsumexp"].flatten(0, 1)
        given = torch.full_like(exact, 7.0)
        given[:, 1::2] = 1.0  # of an allowed size, and so to be left as it is
        result = refine_all(small, given, 6.0)
        expected = exact.where(given > 6.0, given)
        return difference("log-sum-exp", result, expected, TOLERANCE)

    return once(("triton", "refine", device, dtype), device, compare)


def failure_to_compare(problem: Problem, kind: Divergence) -> str | None:
    """Say why the kernel of a divergence is not to be trusted with such problems, or None."""
    if not is_concrete(problem.query):
        return None
    device, dtype = problem.query.device, problem.query.dtype

    def compare() -> str | None:
        one = small_problem(device, dtype)
        other = replace(one, key=one.key.flip(-2))
        steps = [dict(written_out(p.cast(torch.float64))) for p in (one, other)]
        known = (each["logsumexp"].flatten(0, 1) for each in steps)
        result = compare_all(one, other, (next(known), next(known)), kind)
        p, q = (each["weights"].flatten(0, 1) for each in steps)
        return difference(f"divergence {kind}", result, divergence_of(p, q, kind), TOLERANCE)

    return once(("triton", kind, device, dtype), device, compare)


def _cases(
    scaled: Float[Tensor, "N L S"],
    masked: Float[Tensor, "N L S"],
    weights: Float[Tensor, "N L S"],
    logsumexp: Float[Tensor, "N L"],
) -> dict[Kind, tuple[KernelSpec, Tensor]]:
    """Of each kind, make a kernel spec and its result by definition."""
    heads, queries, keys = weights.shape
    visible = masked > -torch.inf
    index = torch.arange(keys, device=weights.device)
    marks = index % 5 == 0
    chosen = index[1::20]
    numbered = torch.stack((chosen, torch.arange(len(chosen), device=weights.device)))
    rows = torch.linspace(-1, 1, heads * 3 * queries, device=weights.device)
    rows = rows.reshape(heads, 3, queries)

    def case(
        kind: Kind, exact: Tensor, size: int = 0, operand: Tensor | None = None
    ) -> tuple[KernelSpec, Tensor]:
        shape = tuple(exact.shape[1:])
        spec = KernelSpec(
            kind=kind, shape=shape, size=size, operand=operand, height=queries, width=keys
        )
        return spec, exact

    back = (index[:, None] - index).abs()
    diagonals = [weights.diagonal(-steps, -2, -1).mean(-1) for steps in range(9)]
    before = torch.nn.functional.pad(weights.diagonal(-2, -2, -1), (2, 0))
    spans = (index[:, None] % 4 == torch.arange(4, device=weights.device)).double()
    pixels = weights.unflatten(-2, (6, -1)).unflatten(-1, (4, -1))
    exact = (
        case(Kind.LOGSUMEXP, logsumexp),
        case(Kind.MAX, weights.amax(-1)),
        case(Kind.ENTROPY, torch.special.entr(weights).sum(-1)),
        case(Kind.DISTANCE, (weights * back).sum(-1)),
        case(Kind.MASS, weights[..., marks].sum(-1), operand=marks),
        case(Kind.TOP, weights.topk(3).values, size=3),
        case(Kind.WEIGHTS, weights[..., chosen], size=len(chosen), operand=numbered),
        case(Kind.RECEIVED, weights.sum(-2)),
        case(Kind.LEFT_PRODUCT, rows.double() @ weights, size=3, operand=rows),
        case(Kind.OFFSETS, torch.stack(diagonals, -1), size=len(diagonals)),
        case(Kind.IMAGE, pixels.mean((-3, -1))),
        case(Kind.MAX_SCORE, scaled.masked_fill(~visible, -torch.inf).amax(-1)),
        case(Kind.LAG, torch.stack((before, before.log()), -1), size=2),
        case(Kind.SPANS, weights @ spans, size=4, operand=index % 4),
        case(Kind.MAX_RECEIVED, weights.amax(-2)),
        case(Kind.MEAN_RECEIVED, torch.stack((weights.sum(-2), visible.sum(-2)), 1)),
        case(Kind.MAX_BLOCKS, pixels.amax((-3, -1))),
    )
    return {spec.kind: (spec, result) for spec, result in exact}
