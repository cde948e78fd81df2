"""The divergence between the rows of two patterns, such as before and after keys are quantised.

Axes: B batch, H query heads, N = B·H flattened heads, L queries, S keys; a part has n heads and R
rows.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from regard._arguments import check_choice, check_integers
from regard._shapes import Float, Int
from regard.backends import reader_of
from regard.backends.kernel_spec import Divergence
from regard.inputs import Problem
from regard.masks.bounds import AffineBounds
from regard.pattern.internal_readouts import LogWeights
from regard.pattern.ordered import totals
from regard.pattern.reading import take
from regard.pattern.readout import Sizes

_AT_ONCE = 2**20  # weights of either pattern in memory at a time

Rows = tuple[Problem, Tensor]
"""A problem and the log-sum-exps of its rows, ``(N, L)``."""


def divergence(
    one: Rows, other: Rows, kind: Divergence, keys: Int[Tensor, "*k s"] | None
) -> Float[Tensor, "*b L"]:
    """Compare two patterns row by row; see `Pattern.divergence`."""
    check_choice("kind", kind, ("kl", "js", "tv"))
    problem = one[0]
    places = _checked(problem, other[0], keys)
    batch, heads = problem.heads
    pair = (problem, other[0]) if places is None else _with_all_keys(problem, other[0], places)
    kernels = reader_of(problem.query.device)
    if pair is not None and kernels.objection_to_comparing(*pair) is None:
        rows = kernels.compare(*pair, (one[1], other[1]), kind)
    else:
        rows = _written_out(one, other, kind, places)
    return problem.restore(rows.reshape(batch, heads, -1)).to(problem.exact_dtype)


def _written_out(
    one: Rows, other: Rows, kind: Divergence, places: Int[Tensor, "N s"] | None
) -> Float[Tensor, "N L"]:
    """Compare a few rows at a time in torch, in float64."""
    problem = one[0]
    heads = problem.heads[0] * problem.heads[1]
    result = torch.zeros(heads, problem.queries, dtype=torch.float64, device=problem.query.device)
    together = max(1, _AT_ONCE // max(1, problem.queries * problem.keys))
    for chosen in torch.arange(heads, device="cpu").split(together):
        height = max(1, _AT_ONCE // max(1, chosen.numel() * problem.keys))
        for top in range(0, problem.queries, height):
            rows = slice(top, min(top + height, problem.queries))
            p, q = (_log_weights(*each, chosen, rows) for each in (one, other))
            if places is not None:
                index = places[chosen.to(places.device)][:, None].expand(-1, len(p[0]), -1)
                wide = q.new_full((*p.shape[:-1], p.shape[-1]), -torch.inf)
                wide[..., -1] = q[..., -1]
                q = wide.scatter_(-1, index.expand(*q.shape[:-1], -1), q[..., :-1])
            result[chosen.to(result.device), rows] = _compare(p, q, kind)
    return result


def _with_all_keys(
    problem: Problem, other: Problem, places: Int[Tensor, "N s"]
) -> tuple[Problem, Problem] | None:
    """Scatter the other's keys to their positions among all keys, and hide the rest.

    Heads may keep different keys, so keys are no longer shared by the heads of a group.

    Returns:
        Both problems with keys per head; None if the other's mask hides keys, or its scores depend
        on positions.
    """
    if other.alibi is not None or not other.rows.is_interval or other.rows.hides_any:
        return None
    if 0 in (problem.queries, other.keys, *problem.heads):
        return None
    shape = (*problem.heads, -1)
    index = places.reshape(*shape[:2], 1, -1)
    allowed = index.new_zeros((*shape[:2], 1, problem.keys), dtype=torch.bool)
    allowed.scatter_(-1, index, value=True)
    own = other.repeated(other.key)
    key = own.new_zeros((*own.shape[:2], problem.keys, own.shape[-1]))
    key.scatter_(2, index.mT.expand_as(own), own)
    bounds = AffineBounds(problem.queries, problem.keys, key.device, 0, None, None)
    rows = replace(other.rows, keys=problem.keys, bounds=bounds, allowed=allowed)
    laid_out = replace(other, key=key, value=None, rows=rows)
    return replace(problem, key=problem.repeated(problem.key), value=None), laid_out


def _compare(p: Float[Tensor, "n R S"], q: Float[Tensor, "n R S"], kind: Divergence) -> Tensor:
    """Compute the divergence of distributions given by their logarithms."""
    if kind == "tv":
        return totals((p.exp() - q.exp()).abs()) / 2
    if kind == "kl":
        return _relative_entropy(p, q)
    middle = torch.logaddexp(p, q) - torch.log(torch.tensor(2.0, dtype=p.dtype, device="cpu"))
    return (_relative_entropy(p, middle) + _relative_entropy(q, middle)) / 2


def _relative_entropy(p: Float[Tensor, "n R S"], q: Float[Tensor, "n R S"]) -> Tensor:
    weights = p.exp()
    terms = torch.where(weights == 0, 0, weights * (p - q))
    return totals(terms).clamp_min(0)  # rounding may give a negative sum


def _log_weights(
    problem: Problem, logsumexp: Float[Tensor, "N L"], chosen: Int[Tensor, "n"], rows: slice
) -> Float[Tensor, "n R _"]:
    """Compute the log-weights of rows of some heads in float64, with the sink as a last key."""
    part = problem.select(chosen).crop(rows, slice(0, problem.keys))
    known = logsumexp[chosen.to(logsumexp.device), rows]
    sizes = Sizes((chosen.numel(),), part.queries, part.keys, part.exact_dtype, known.device)
    (logs,) = take((LogWeights(),), part, sizes, known, None)
    sink = torch.full_like(logs[..., :1], -torch.inf, dtype=torch.float64)
    if part.sink is not None:
        share = part.sink.double() - known.double()
        sink = torch.where(known == -torch.inf, -torch.inf, share)[..., None]
    return torch.cat((logs.double(), sink), dim=-1)


def _checked(problem: Problem, other: Problem, keys: Tensor | None) -> Int[Tensor, "N s"] | None:
    """Check that the patterns fit together, and broadcast the key indices over the heads."""
    if problem.leading != other.leading or problem.queries != other.queries:
        raise ValueError(
            f"the patterns have {(*problem.leading, problem.queries)} rows and "
            f"{(*other.leading, other.queries)}; they must be the same"
        )
    if problem.query.device != other.query.device:
        raise ValueError(
            f"the patterns are on {problem.query.device} and {other.query.device}; move one: "
            "other.to(pattern.device)"
        )
    if keys is None:
        if problem.keys != other.keys:
            raise ValueError(
                f"the patterns have {problem.keys} and {other.keys} keys; say with keys=... which "
                "of this pattern's keys the other's are"
            )
        return None
    check_integers(keys, "keys")
    try:
        spread = keys.to(problem.query.device).expand(*problem.leading, other.keys)
    except RuntimeError:
        spread = None
    if spread is None or not _distinct(spread, problem.keys):
        raise ValueError(
            f"keys, of shape {tuple(keys.shape)}, must name a different one of {problem.keys} keys "
            f"for each of the other pattern's {other.keys}"
        )
    return spread.reshape(-1, other.keys).long()


def _distinct(keys: Tensor, count: int) -> bool:
    if keys.numel() and not (int(keys.min()) >= 0 and int(keys.max()) < count):
        return False
    return bool((keys.sort(dim=-1).values.diff(dim=-1) > 0).all())
