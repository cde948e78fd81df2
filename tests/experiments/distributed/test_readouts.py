"""Readouts over several ranks, each against its definition on the oracle's weights."""

import functools

import pytest
import torch
from support.definitions import (
    blocks,
    distance,
    entropy,
    lag,
    largest,
    max_score,
    of_each_head,
    offsets,
    received,
    received_by,
    spans,
)
from support.ring import MARKED, PROBLEMS, READ, ROUNDING, SOME, evicted, exact, labels

# Readouts are summed up in float64; what is off is a weight, by the rounding of its score, times
# the length of a row at most, or a distance in it.
FACTOR = 32

OF_ALL = ("Offsets", "Image", "MaxScore of heads", "Blocks", "most of Blocks")


@functools.cache
def defined(name):
    """Every readout but the strongest keys, by its definition."""
    problem = exact(name)
    weights = problem.exact.weights
    every = range(weights.shape[-2])
    some = every[SOME]
    rows, columns = (shares(n, size) for n, size in zip((7, 11), weights.shape[-2:], strict=True))
    keys, evicted_keys = weights.shape[-1], [[t.tolist()] * 2 for t in evicted(weights.shape[-1])]
    places = [[*range(keys)]] * len(weights), problem.positions.tolist()
    lags = (
        lag(problem, 2, *places),
        lag(problem, 3, *evicted_keys),
    )
    return {
        "Lag": lags[0][0],
        "log Lag": lags[0][1],
        "Lag of evicted": lags[1][0],
        "log Lag of evicted": lags[1][1],
        "Spans": spans(problem, labels(keys), 4),
        "Blocks": blocks(problem, 3, 5, "sum"),
        "most of Blocks": blocks(problem, 5, 3, "max"),
        "Max": of_each_head(largest, problem),
        "MaxScore": max_score(problem),
        "MaxScore of heads": max_score(problem).amax(-1),
        "Entropy": of_each_head(entropy, problem),
        "Distance": of_each_head(distance, problem),
        "Mass": weights[..., list(MARKED)].sum(-1),
        "Received": of_each_head(received, problem),
        "Received of some": received_by(problem, "sum", some, 1),
        "mean Received": received_by(problem, "mean", some, 1),
        "most Received": received_by(problem, "max", every, 1),
        "Offsets": of_each_head(offsets, problem, 9, per_head=[problem.visible]),
        "Image": rows @ weights @ columns.mT,
        "SquaredWeights": weights.square().sum(-1),
    }


def shares(pixels, tokens):
    """Share of each token in the mean that a pixel shows, (pixels, tokens)."""
    edges = torch.arange(pixels + 1, dtype=torch.float64)[:, None] * tokens / pixels
    token = torch.arange(tokens)
    covered = torch.minimum(edges[1:], token + 1) - torch.maximum(edges[:-1], token)
    return covered.clamp(min=0) * pixels / tokens


@pytest.mark.parametrize("name", READ)
def test_every_readout_is_its_definition(world, name):
    for readout, result in defined(name).items():
        if readout in OF_ALL:
            actual = world.common(f"readouts {name}", readout)
        else:  # of rows or of keys: each rank has its own
            actual = world.whole(f"readouts {name}", readout, -2 if readout == "Spans" else -1)
        tolerance = FACTOR * ROUNDING[PROBLEMS[name].dtype]
        torch.testing.assert_close(
            actual.double(),
            result,
            rtol=0,
            atol=tolerance,
            msg=lambda text, readout=readout: f"{readout}: {text}",
        )


@pytest.mark.parametrize("name", READ)
def test_the_strongest_keys_are_named_by_their_place_in_the_sequence(world, name):
    problem = exact(name)
    weights, k = problem.exact.weights, 4
    top, positions = (
        world.whole(f"readouts {name}", f"top {one}", -2) for one in ("weights", "positions")
    )
    tolerance = FACTOR * ROUNDING[PROBLEMS[name].dtype]
    torch.testing.assert_close(top.double(), weights.topk(k).values, rtol=0, atol=tolerance)
    count = problem.visible.sum(-1, keepdim=True)
    seen = torch.arange(k) < count
    assert torch.equal(positions >= 0, seen)
    there = weights.gather(-1, positions.clamp(min=0)).where(seen, 0)
    torch.testing.assert_close(top.double(), there, rtol=0, atol=tolerance)
    distinct = positions.where(seen, -1 - torch.arange(k)).sort(-1).values
    assert bool((distinct.diff(dim=-1) > 0).all())
