"""Scores up to the float32 maximum: never NaN, and one-hot weights are exact.

Queries and keys are signs times a power of 2. So every dot product is exact in whatever order it is
added up, and what is compared is what becomes of the scores: equals share their weight, however
large they are, and a lead of some millions takes all of it.
"""

import math

import pytest
import torch
from support.cpu_paths import SETS
from support.patterns import inputs, masks

import regard
from regard.masks.hiding import add_to_scores

pytestmark = pytest.mark.skipif(not SETS, reason="needs the native library")

D, DV, H, G = 16, 7, 4, 2
SIZES = [1e2, 8e4, 8e6, 2.0**33, 1e20, 1e30]
# Few rows against many keys go another way.
LENGTHS = [(3, 1031), (131, 257)]
# Of the numbers themselves: the dtype's rounding of a result, 2 to 8 of them in a float32 softmax.
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}
# A log-sum-exp of up to 64 is kept as a float32, and so is its product with log₂ e: their roundings
# are 2e-6 each. Those of scores that a softcap or a bias keeps at such sizes come on top.
EXPONENT = 5
OPTIONS = ("none", "causal", "window", "padding", "documents", "dense", "bias", "alibi", "softcap")
OPTIONS += ("sink", "large sink", "shifted")


def option(name, queries, keys, size):
    if name in ("sink", "large sink"):
        # A sink as large as the largest score, and one far above it, take half of a row and all.
        tall = torch.tensor([size, 4 * size, 0.0, -size])
        return {"sink": tall if name == "large sink" else torch.tensor([1.0, -2.0, 0.0, 3.0])}
    if name == "softcap":
        return {"softcap": 20.0}
    if name == "alibi":
        return {"alibi": size / 2.0 ** torch.arange(8, 8 + H)}
    if name == "shifted":
        hidden = regard.causal() & regard.masks.hide(slice(keys // 4, keys // 2), heads=[0, 3])
        return {"mask": hidden & add_to_scores(size / 8, slice(5, None, 7))}
    if name == "bias":  # beside such scores, a float32 keeps nothing that is much smaller
        generator = torch.Generator().manual_seed(6)
        return {"bias": size * torch.randint(-3, 4, (H, queries, keys), generator=generator) / 8}
    return masks(queries, keys)[name]


def signs(*shape, seed):
    return torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed)) * 2.0 - 1


def problem(queries, keys, size, dtype):
    """Queries that each equal some key: that key's score is `size`, others are far below."""
    unit = 2.0 ** round(math.log2(math.sqrt(size / math.sqrt(D))))
    key = signs(2, G, keys, D, seed=1)
    same = torch.randint(0, keys, (2, H, queries), generator=torch.Generator().manual_seed(2))
    query = key.repeat_interleave(H // G, 1).gather(2, same[..., None].expand(-1, -1, -1, D))
    value = torch.randn(2, G, keys, DV, generator=torch.Generator().manual_seed(3))
    query, key = (query * unit).to(dtype), (key * unit).to(dtype)
    return query, key, value.to(dtype), float(query[0, 0, 0].double().square().sum() / math.sqrt(D))


def gradients(context, tensors):
    ahead = torch.randn(context.shape, generator=torch.Generator().manual_seed(4))
    return torch.autograd.grad(context, tensors, ahead.to(context.dtype))


def close(result, exact, dtype, size=None):
    largest = exact.abs().max() if size is None else size
    assert (result.double() - exact).abs().max() <= ROUNDING[dtype] * largest


@pytest.mark.each_once
@pytest.mark.parametrize("dtype", list(ROUNDING), ids=str)
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
def test_large_scores(queries, keys, name, dtype, instructions):
    for size in SIZES:
        if dtype == torch.float16 and size > 1e9:
            continue
        *tensors, reached = problem(queries, keys, size, dtype)
        options = option(name, queries, keys, reached)
        inputs = [t.clone().requires_grad_() for t in tensors]
        exact = [t.double().requires_grad_() for t in tensors]
        sinks = [options.pop("sink").requires_grad_()] if "sink" in options else []
        sink = {"sink": sinks[0]} if sinks else {}
        steps = regard.explain(*exact, **options, **sink)
        expected = gradients(steps.context, [*exact, *sinks])
        context, pattern = regard.attention_with_pattern(
            *inputs, **options, **sink, backend="native"
        )
        computed = gradients(context, [*inputs, *sinks])
        fresh = regard.Pattern(*tensors[:2], **options, **sink)
        dense = [pattern.dense(), fresh.dense()]
        largest = fresh.max()
        close(context, steps.context, dtype)
        assert torch.allclose(pattern.logsumexp.double(), steps.logsumexp, rtol=1e-6, atol=1e-6)
        for weights in dense:  # float32 in any case
            close(weights, steps.weights, torch.float32, EXPONENT)
        close(largest, steps.weights.amax(-1), torch.float32, EXPONENT)
        close(computed[2], expected[2], dtype, 4 * expected[2].abs().max())
        # Those of query and key are differences of products of DV numbers, times the other's size.
        for one, other, partner in zip(computed[:2], expected, (1, 0), strict=False):
            reach = float(tensors[partner].abs().max()) * DV
            close(one, other, dtype, max(float(other.abs().max()), reach))
        if sinks:  # the sum of all rows', each of them of DV products
            close(computed[3], expected[3], dtype, 2 * queries * DV)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("score", [-1e38, -1e31, -(2.0**33), 2.0**33, 3e4**2 * 8, 1e31, 1e38])
def test_a_single_key_has_all_weight(score, dtype, instructions):
    value = torch.randn(1, 1, 1, DV).to(dtype)
    for rows in (1, 70):
        size = math.sqrt(abs(score) / 8)
        query = torch.full((1, 1, rows, D), size, dtype=dtype)
        key = torch.full((1, 1, 1, D), math.copysign(size, score), dtype=dtype)
        context, pattern = regard.attention_with_pattern(query, key, value, backend="native")
        assert torch.equal(context, value.expand(1, 1, rows, DV))
        assert torch.equal(pattern.dense(), torch.ones(1, 1, rows, 1))
        assert torch.equal(regard.Pattern(query, key).max(), torch.ones(1, 1, rows))


@pytest.mark.parametrize("queries", [1, 70])
def test_spans_that_hide_by_the_lowest_float(queries, instructions):
    query, key = inputs(queries, 131)
    lowest = add_to_scores(torch.finfo(torch.float32).min, slice(100, None))
    context = regard.attention(query, key, key, mask=lowest, backend="native")
    hidden = regard.attention(query, key, key, mask=regard.masks.hide(slice(100, None)))
    assert torch.allclose(context, hidden, atol=1e-6)
    everywhere = add_to_scores(torch.finfo(torch.float32).min, slice(None))
    weights = regard.Pattern(query, key, mask=everywhere).dense()
    assert torch.allclose(weights, torch.full_like(weights, 1 / 131))


def test_a_bias_that_hides_by_the_lowest_float(instructions):
    """As many libraries write their masks; where all is lowest, all are equal."""
    query, key = inputs(70, 131)
    bias = torch.zeros(70, 131)
    bias[:, 100:] = bias[3] = torch.finfo(torch.float32).min
    exact = regard.explain(query.double(), key.double(), key.double(), bias=bias.double())
    weights = regard.Pattern(query, key, bias=bias).dense()
    expected = exact.weights.clone()
    expected[:, :, 3] = 1 / 131  # what scores are added to such a number is below its rounding
    assert (weights.double() - expected).abs().max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [1e12, 1e18, 1e30])
def test_scores_that_are_not_powers_of_2(size, dtype, instructions):
    """Products with the scale round, and in float64 too that is more than any exponent holds."""
    query, key, value = (
        torch.randn(1, 2, 67, 41, generator=torch.Generator().manual_seed(seed))
        for seed in (1, 2, 3)
    )
    query, key, value = ((query * size).to(dtype), key.to(dtype), value.to(dtype).requires_grad_())
    exact = regard.explain(*(t.detach().double() for t in (query, key, value))).weights
    assert (exact.amax(-1) == 1).all()
    pattern = regard.Pattern(query, key)
    torch.testing.assert_close(pattern.dense().double(), exact, rtol=0, atol=0)
    context = regard.attention(query, key, value)
    (gradient,) = torch.autograd.grad(context, value, torch.ones_like(context))
    wanted = exact.sum(-2, keepdim=True).transpose(-1, -2).expand_as(gradient)
    torch.testing.assert_close(gradient.double(), wanted, rtol=ROUNDING[dtype], atol=0)
