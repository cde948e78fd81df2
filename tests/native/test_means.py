"""The mean of several heads, whose weights the kernels accumulate, against float64."""

import math
from functools import partial

import pytest
import torch
from support.cpu_paths import SETS, streamed
from support.draws import normal
from support.patterns import NAMES, flat, inputs, masks

import regard
from regard.pattern import MeanPattern
from regard.pattern.readouts import (
    Blocks,
    Distance,
    Entropy,
    Image,
    Mass,
    Max,
    Offsets,
    Received,
    Spans,
    TopK,
)

pytestmark = pytest.mark.skipif(not SETS, reason="needs the native library")

L, S = 193, 191
READOUTS = (
    *(Max(), Entropy(), Distance(), Mass(slice(3, 40, 3)), Spans([7] * 50 + [2] * 90 + [-1] * 51)),
    *(Received(), Received("mean"), Received("max"), Received(queries=slice(5, 90))),
    *(Offsets(70), Image(13, 11), Blocks(16, 5), Blocks(7, 90, "max"), TopK(5)),
)


def results(mean, readouts=READOUTS):
    """Of every readout its tensors, but for the positions of the strongest keys."""
    *others, top = mean.read(*readouts)
    return [*flat(others), top.weights]


def assert_close(mean, exact, atol):
    for readout, ours, wanted in zip(READOUTS, results(mean), results(exact), strict=True):
        # A weight is off by some 1e-6 of its size, and a sum over 193 rows by that of its own.
        torch.testing.assert_close(
            ours.double(), wanted, rtol=1e-5, atol=atol, msg=lambda m, r=readout: f"{r}: {m}"
        )


@pytest.mark.each_once
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NAMES)
def test_readouts_are_those_of_float64(instructions, name, dtype):
    query, key = inputs(L, S, dtype)
    options = masks(L, S)[name]
    mean = regard.Pattern(query, key, **options).mean()
    exact = regard.Pattern(query.double(), key.double(), **options).mean()
    assert_close(mean, exact, atol=2e-5)


def test_the_strongest_keys_are_those_of_the_mean(instructions):
    query, key = inputs(L, S)
    mean = regard.Pattern(query, key, mask=regard.causal(offset=0)).mean()
    top, weights = mean.topk(9), mean.dense()
    expected = weights.sort(dim=-1, descending=True, stable=True)
    torch.testing.assert_close(top.weights, expected.values[..., :9], rtol=1e-6, atol=0)
    chosen = weights.gather(-1, top.positions.clamp(min=0))
    torch.testing.assert_close(top.weights[:, 8:], chosen[:, 8:], rtol=1e-6, atol=0)
    # Query i sees the keys 0 … i; where those are fewer than nine, nothing comes after them.
    assert top.positions[0, 3].tolist()[4:] == [-1] * 5
    assert sorted(top.positions[0, 3].tolist()[:4]) == [0, 1, 2, 3]


def test_visible_keys_without_weight_come_before_no_key(instructions):
    query, key = torch.zeros(3, 2, 1), torch.zeros(3, 7, 1)
    bias = torch.full((2, 7), -200.0)  # e⁻²⁰⁰ is below what float32 holds
    bias[:, 5] = 0
    bias[:, 6] = -math.inf
    top = regard.Pattern(query, key, bias=bias).mean().topk(7)
    first, *others, last = top.positions[1].tolist()
    assert (first, sorted(others), last) == (5, [0, 1, 2, 3, 4], -1)
    assert top.weights[1].tolist() == [1, 0, 0, 0, 0, 0, 0]


def test_results_are_bitwise_independent_of_other_readouts(instructions):
    query, key = inputs(L, S)
    mean = regard.Pattern(query, key, mask=regard.causal()).mean()
    for readout, together in zip(READOUTS, mean.read(*READOUTS), strict=True):
        (alone,) = mean.read(readout)
        for one, other in zip(flat([together]), flat([alone]), strict=True):
            assert torch.equal(one, other)


def test_a_number_that_is_not_finite_fills_what_its_row_sees(instructions):
    query, key = inputs(L, S)
    query[1, 4, 100] = math.nan
    options = {"mask": regard.causal()}
    mean = regard.Pattern(query, key, **options).mean()
    assert bool(mean.entropy()[1, 100].isnan())
    assert bool(mean.read(Max())[0][1, 100].isnan())
    with streamed():
        expected = results(regard.Pattern(query, key, **options).mean())
    for ours, theirs in zip(results(mean), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-5, equal_nan=True)


def test_heads_of_several_layers_with_scores_of_their_own(instructions):
    options = [{"scale": 0.7}, {"softcap": 2.0}, {"alibi": torch.tensor([0.1, 0.3])}]
    options += [{"sink": torch.tensor([0.5, -1.0])}, {"scale": 40.0}]
    patterns, exact = [], []
    for number, own in enumerate(options):
        query, key = normal(2, L, 17, seed=number), normal(2, S, 17, seed=9 + number)
        make = partial(regard.Pattern, mask=regard.causal() & regard.window(150), **own)
        patterns += make(query, key)
        exact += make(query.double(), key.double())
    # Scores of 40 · 17 are off by 1e-4, and with them the weights.
    assert_close(MeanPattern(patterns), MeanPattern(exact), atol=2e-3)


def test_a_part_of_rows_and_keys(instructions):
    query, key = inputs(L, S)
    whole = regard.Pattern(query, key, mask=regard.causal()).mean()
    part, weights = whole.crop((60, 150), (17, 101)), whole.dense()[:, 60:150, 17:101]
    entropy, received, largest = part.read(Entropy(), Received(), Max())
    close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5)
    close(entropy, -torch.special.xlogy(weights, weights).sum(-1))
    close(received, weights.sum(-2))
    close(largest, weights.amax(-1))


@pytest.mark.parametrize("queries", [1, 2, 5, 16])
def test_few_queries(instructions, queries):
    query, key = inputs(queries, 301)
    mean = regard.Pattern(query, key, mask=regard.causal()).mean()
    close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-6)
    weights = mean.dense()
    close(mean.entropy(), -torch.special.xlogy(weights, weights).sum(-1))
    close(mean.received(), weights.sum(-2))


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_nothing_to_read(shape):
    queries, keys = shape
    mean = regard.Pattern(torch.zeros(3, queries, 2), torch.zeros(3, keys, 2)).mean()
    entropy, received = mean.read(Entropy(), Received())
    assert entropy.tolist() == [0] * queries
    assert received.tolist() == [0] * keys


def test_head_dimensions_may_differ():
    one = regard.Pattern(torch.zeros(1, 7, 3), torch.zeros(1, 7, 3))[0]
    other = regard.Pattern(torch.zeros(1, 7, 5), torch.zeros(1, 7, 5))[0]
    assert MeanPattern([one, other]).entropy().tolist() == pytest.approx([math.log(7)] * 7)
