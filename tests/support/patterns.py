"""Patterns under every mask and option, at any size, and everything that can be read of them."""

import math

import torch

import regard
from regard.masks.hiding import add_to_scores
from regard.pattern.readouts import Distance, Entropy, Image, Mass, Max, Offsets, Received, TopK
from support.definitions import distance, entropy, image, largest, of_each_head, offsets, received
from support.draws import normal

SUMMED = (Received(), Offsets(70), Image(13, 11), Image(1, 2), Image(1000, 1000))
BY_ROW = (Max(), Entropy(), Distance(), Mass(slice(3, 40, 3)))
READOUTS = (TopK(5), *BY_ROW, *SUMMED)


def flat(results):
    return [t for r in results for t in (r if isinstance(r, tuple) else (r,))]


def everything(pattern, readouts=READOUTS):
    """All results as tensors with leading dimensions, but for the positions of the strongest."""
    top, *others = pattern.read(*readouts)
    *_, queries, keys = pattern.shape
    rows = normal(3, queries, seed=9).to(pattern.dtype)
    chosen = [keys - 1, 0, keys // 2, keys // 3, keys // 3]
    return {
        "TopK": top.weights,
        **{repr(r): result for r, result in zip(readouts[1:], others, strict=True)},
        "logsumexp": pattern.logsumexp,
        "weights": pattern.dense(),
        "columns": pattern[..., :, chosen],
        "a stretch": pattern[..., queries // 2, keys // 4 : keys // 2 + 1],
        "rows @ pattern": rows @ pattern,
    }


def afresh(pattern, rows=None, heads=None):
    """Some rows and heads of a pattern, whose log-sum-exps are computed anew."""
    problem = pattern.problem
    if heads is not None:
        problem = problem.select(heads)
    return regard.Pattern.of(problem if rows is None else problem.at(torch.tensor(rows)), None)


def defined_readouts(size, marked):
    """One of each kind that is computed by a definition."""
    sums = (Offsets(size), Mass(marked), Image(size, 10 - size))
    return (Max(), Entropy(), Received(), Distance(), *sums)


def assert_definitions(case, size, marked, results):
    """Compare results of `defined_readouts` with their definitions; return the tolerance."""
    exact, keys = case.exact.weights, case.key.shape[-2]
    expected = [
        of_each_head(largest, case),
        of_each_head(entropy, case),
        of_each_head(received, case),
        of_each_head(distance, case),
        of_each_head(offsets, case, size, per_head=[case.visible]),
        exact[..., list({j % keys for j in marked})].sum(-1),
        of_each_head(image, case, size, 10 - size),
    ]
    # A weight is off by the rounding of its score, relative to its size. Sums over a row or a
    # column of weights multiply that by no more than the length, or by a logarithm or a distance.
    tolerance = {"rtol": 0, "atol": 8 * case.rounding * max(case.visible.shape[-2:])}
    # Where a sink leaves a row next to nothing, float32 has no weights to average distances with.
    faint = exact.sum(-1) < 1e-30
    expected[3] = torch.where(faint, results[3].double(), expected[3])
    readouts = defined_readouts(size, marked)
    for readout, result, wanted in zip(readouts, results, expected, strict=True):
        torch.testing.assert_close(
            result.double(), wanted, msg=lambda m, r=readout: f"{r}: {m}", **tolerance
        )
    return tolerance


def assert_exact(case, tolerance, dense, logsumexp, product, coefficients):
    """Compare weights, log-sum-exps and ``coefficients @ pattern`` with the definition's."""
    exact, visible = case.exact.weights, ~case.fully_masked
    torch.testing.assert_close(dense.double(), exact, **tolerance)
    assert not bool(dense[~case.visible].any())
    torch.testing.assert_close(product.double(), coefficients.double() @ exact, **tolerance)
    assert (logsumexp[case.fully_masked] == -math.inf).all()
    torch.testing.assert_close(
        logsumexp[visible].double(), case.exact.logsumexp[visible], **tolerance
    )


def masks(queries, keys, entries=slice(None), heads=6):
    """Masks of two entries: one that both share, or one each."""
    index = torch.arange(keys)
    keep = torch.stack([index >= keys // 3, index < keys - keys // 4])[entries]
    ids = torch.stack([index // 50, index // (keys // 2 + 1)])[entries]
    dense = normal(2, 1, queries, keys, seed=3) > -1
    bias = normal(1, heads, queries, keys, seed=4).masked_fill(~dense[:1], -math.inf)
    dense = dense[entries]
    return {
        "none": {},
        "causal": {"mask": regard.causal()},
        "window": {"mask": regard.causal() & regard.window(37)},
        "padding": {"mask": regard.causal() & regard.padding(keep)},
        "documents": {"mask": regard.documents(ids)},
        "early": {"mask": regard.causal(offset=-20), "sink": normal(heads, seed=5)},
        "dense": {"mask": regard.causal() & regard.dense(dense)},
        "bias": {"bias": bias, "scale": -0.3},
        "hidden": {"mask": regard.causal() & HIDDEN},
        "alibi": {"alibi": 0.5 ** torch.arange(1, heads + 1), "softcap": 3.0},
    }


HIDDEN = (
    regard.masks.hide(slice(3, 40), queries=slice(20, None, 2), heads=slice(1, 5))
    & regard.masks.hide(slice(9, -9, 7), heads=0)
    & add_to_scores(0.7, slice(30, 90), slice(40, 80))
    & add_to_scores(-1.5, slice(-60, -3), heads=slice(None, None, 2))
)

NAMES = list(masks(1, 1))


def inputs(queries, keys, dtype=torch.float32, heads=6, groups=2):
    """Two entries of six heads, of which three share a key, by default."""
    query, key = normal(2, heads, queries, 19), normal(2, groups, keys, 19, seed=1)
    return query.to(dtype), key.to(dtype)
