"""Weights of a row are bitwise independent of the selection that is computed with it."""

import pytest
import torch
from support.cpu_paths import SETS
from support.patterns import afresh, flat, inputs, masks

import regard
from regard.pattern.readouts import Distance, Entropy, Mass, Max, TopK

pytestmark = pytest.mark.skipif(not SETS, reason="needs the native library")

QUERIES = KEYS = 331
# Alone, neighbours, the ends, every other, more than a task holds, and all but the first.
ROWS = [[0], [1], [7, 8], [97, 3], [0, 330], [*range(0, 331, 2)], [*range(40, 200)]]
ROWS += [[*range(1, 331)], [330]]
OF_ROWS = (Max(), Entropy(), Distance(), Mass(slice(3, 111)), TopK(5))


def rows_of(pattern):
    """Everything that a row has of its own; heads and rows are the first axes."""
    log, (*numbers, top) = pattern.logsumexp, pattern.read(*OF_ROWS)
    return [log, pattern.dense(), *numbers, *flat([top])]


@pytest.mark.each_once
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "name", ["causal", "window", "padding", "documents", "bias", "alibi", "early", "hidden"]
)
def test_weights_are_bitwise_independent_of_other_rows(name, dtype, instructions):
    query, key = (t.to(dtype) for t in inputs(QUERIES, KEYS))
    pattern = regard.Pattern(query, key, **masks(QUERIES, KEYS)[name])
    whole = rows_of(pattern)
    for rows in ROWS:
        for one, other in zip(rows_of(afresh(pattern, rows)), whole, strict=True):
            assert torch.equal(one, other[:, :, rows]), rows


def test_weights_are_bitwise_independent_of_other_heads_and_batch_entries(instructions):
    pattern = regard.Pattern(*inputs(QUERIES, KEYS), **masks(QUERIES, KEYS)["padding"])
    whole = [result.flatten(0, 1) for result in rows_of(pattern)]
    for heads in ([0], [4], [1, 3], [5, 2, 7]):
        for rows in (None, [5, 96, 97]):
            part = rows_of(afresh(pattern, rows, torch.tensor(heads)))
            for one, other in zip(part, whole, strict=True):
                expected = other[heads] if rows is None else other[heads][:, rows]
                assert torch.equal(one, expected), (heads, rows)


def test_weights_are_bitwise_independent_of_other_keys(instructions):
    pattern = regard.Pattern(*inputs(QUERIES, KEYS), mask=regard.causal())
    whole = pattern.dense()
    for keys in (0, 330, slice(5, 100), slice(96, 97), [3, 200, 17]):
        assert torch.equal(pattern[..., keys], whole[..., keys])
        assert torch.equal(pattern[..., 100:300, keys], whole[..., 100:300, :][..., keys])


@pytest.mark.parametrize("size", [1.0, 1e4, 1e9])
def test_weights_are_bitwise_independent_of_a_given_log_sum_exp(size, instructions):
    query, key = inputs(67, 131)
    fresh = regard.Pattern(query * size, key, mask=regard.causal())
    first = fresh.dense()  # finds the log-sum-exps on the way
    assert torch.equal(fresh.dense(), first)
    known = regard.Pattern(query * size, key, mask=regard.causal(), logsumexp=fresh.logsumexp)
    assert torch.equal(known.dense(), first)
    assert torch.equal(known[..., 3:50, 7:9], first[..., 3:50, 7:9])
