"""Sizes of one and zero; every number of leading dimensions; every layout in memory."""

import itertools
import math

import pytest
import torch
from support.cases import DTYPES, strided
from support.cpu_paths import ON_CPU
from support.draws import normal

import regard
from regard.pattern.readouts import Distance, Entropy, Image, Mass, Offsets, Received, TopK

pytestmark = pytest.mark.usefixtures("instructions")


MASKS = (None, regard.causal(), regard.causal(offset=0) & regard.window(2))


@pytest.mark.parametrize("backend", ON_CPU)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("nothing", ["batch", "heads", "groups", "queries", "keys", "dim_value"])
def test_empty_tensors(nothing, mask, backend):
    sizes = {"batch": 2, "heads": 4, "groups": 2, "queries": 5, "keys": 7, "dim_value": 3}
    sizes[nothing] = 0
    if nothing in {"heads", "groups"}:
        sizes["heads"] = sizes["groups"] = 0
    if nothing == "dim_value" and backend == "torch_sdpa":
        backend = None
    batch, heads, groups, queries, keys, dim_value = sizes.values()
    query = normal(batch, heads, queries, 8).requires_grad_()
    key = normal(batch, groups, keys, 8).requires_grad_()
    value = normal(batch, groups, keys, dim_value).requires_grad_()
    context, pattern = regard.attention_with_pattern(query, key, value, mask=mask, backend=backend)
    assert context.shape == (batch, heads, queries, dim_value)
    if keys == 0:
        assert not bool(context.any())
        assert bool((pattern.logsumexp == -torch.inf).all())
    assert pattern.shape == (batch, heads, queries, keys)
    assert pattern.dense().shape == pattern.shape
    assert pattern[..., :2, :].shape == (batch, heads, min(queries, 2), keys)
    assert pattern[:, :1].dense().shape == (batch, min(heads, 1), queries, keys)
    assert (pattern @ torch.ones(keys, 3)).shape == (batch, heads, queries, 3)
    assert (torch.ones(3, queries) @ pattern).shape == (batch, heads, 3, keys)
    error = pattern.verify()
    assert error < 1e-6 if pattern.shape.numel() else math.isnan(error)
    for again in (pattern, regard.Pattern(query, key, mask=mask)):
        top, *rest = again.read(
            TopK(3), Entropy(), Received(), Distance(), Offsets(4), Mass(slice(None)), Image(3, 2)
        )
        lead = (batch, heads)
        assert top.weights.shape == top.positions.shape == (*lead, queries, min(3, keys))
        widths = [
            (queries,),
            (keys,),
            (queries,),
            (4,),
            (queries,),
            (min(3, queries), min(2, keys)),
        ]
        assert [r.shape for r in rest] == [(*lead, *width) for width in widths]
        assert all(bool(r.isfinite().all()) for r in rest)
    if context.requires_grad:
        gradients = torch.autograd.grad(context.sum(), (query, key, value), allow_unused=True)
        assert not any(g is not None and bool(g.isnan().any()) for g in gradients)


@pytest.mark.parametrize("dtype", DTYPES)
def test_head_dimension_zero_gives_uniform_weights(dtype):
    query, key, value = (
        normal(5, 0, dtype=dtype),
        normal(7, 0, dtype=dtype),
        normal(7, 3, dtype=dtype),
    )
    context, pattern = regard.attention_with_pattern(query, key, value)
    tolerance = {"rtol": 0, "atol": 2 * torch.finfo(dtype).eps}  # of a mean of numbers near 1
    torch.testing.assert_close(context, value.double().mean(0).to(dtype).expand(5, 3), **tolerance)
    torch.testing.assert_close(pattern.dense(), torch.full((5, 7), 1 / 7, dtype=pattern.dtype))


@pytest.mark.parametrize("backend", ON_CPU)
@pytest.mark.parametrize("mask", [None, regard.causal()])
def test_one_query_and_one_key(mask, backend):
    query, key, value = normal(2, 3, 1, 8), normal(2, 3, 1, 8), normal(2, 3, 1, 5)
    context, pattern = regard.attention_with_pattern(query, key, value, mask=mask, backend=backend)
    # The weight before it is divided by the denominator, and that division, are each rounded.
    torch.testing.assert_close(context, value, rtol=2 * torch.finfo(value.dtype).eps, atol=0)
    torch.testing.assert_close(pattern.dense(), torch.ones(2, 3, 1, 1))
    torch.testing.assert_close(pattern.logsumexp, (query * key).sum(-1) * 8**-0.5)


@pytest.mark.parametrize("backend", ON_CPU)
def test_decoding_one_query_at_a_time_is_the_whole(backend):
    query, key, value = (
        normal(2, 4, 11, 8),
        normal(2, 2, 11, 8, seed=1),
        normal(2, 2, 11, 5, seed=2),
    )
    whole = regard.attention(query, key, value, mask=regard.causal(), backend=backend)
    for t in range(11):
        step = regard.attention(
            query[:, :, t : t + 1],
            key[:, :, : t + 1],
            value[:, :, : t + 1],
            mask=regard.causal(),
            backend=backend,
        )
        torch.testing.assert_close(step, whole[:, :, t : t + 1])


@pytest.mark.each_once
@pytest.mark.parametrize("backend", ON_CPU)
@pytest.mark.parametrize("lead", [(), (4,), (3, 4), (2, 3, 4), (2, 1, 3, 4)])
def test_every_number_of_leading_dimensions(lead, backend):
    grouped = (*lead[:-1], 2) if lead else ()
    query = normal(*lead, 5, 8)
    key, value = normal(*grouped, 7, 8, seed=1), normal(*grouped, 7, 3, seed=2)
    options = {"mask": regard.causal(), "bias": normal(*lead, 5, 7, seed=3)}
    if lead:
        options |= {"alibi": normal(lead[-1], seed=4).abs(), "sink": normal(lead[-1], seed=5)}
    context, pattern = regard.attention_with_pattern(query, key, value, **options, backend=backend)
    assert context.shape == (*lead, 5, 3)
    assert pattern.shape == (*lead, 5, 7)
    steps = regard.explain(query, key, value, **options)
    torch.testing.assert_close(context, steps.context)
    torch.testing.assert_close(pattern.dense(), steps.weights)
    torch.testing.assert_close(pattern.logsumexp, steps.logsumexp)
    torch.testing.assert_close(pattern.entropy(), torch.special.entr(steps.weights).sum(-1))
    for index in itertools.product(*(range(n) for n in lead)):
        torch.testing.assert_close(pattern[index].dense(), steps.weights[index])


def test_batch_dimensions_of_key_and_value_broadcast():
    query, key, value = normal(2, 3, 4, 5, 8), normal(1, 3, 2, 7, 8), normal(2, 1, 2, 7, 3)
    context = regard.attention(query, key, value)
    spread = regard.attention(query, key.expand(2, 3, 2, 7, 8), value.expand(2, 3, 2, 7, 3))
    assert torch.equal(context, spread)


HOW = ("transposed", "columns", "gaps", "expanded")


@pytest.mark.parametrize("backend", ON_CPU)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", HOW)
def test_results_do_not_depend_on_the_memory_layout(how, dtype, backend):
    if dtype == torch.float64 and backend != "eager":
        backend = None
    tensors = normal(2, 4, 5, 8), normal(2, 2, 7, 8, seed=1), normal(2, 2, 7, 3, seed=2)
    laid_out = [strided(t.to(dtype), how) for t in tensors]
    assert any(t.stride() != t.contiguous().stride() for t in laid_out)
    query, key, value = (t.contiguous() for t in laid_out)
    wanted = regard.explain(query, key, value, mask=regard.causal())
    for t in laid_out:
        t.requires_grad_()
    context, pattern = regard.attention_with_pattern(
        *laid_out, mask=regard.causal(), backend=backend
    )
    # Two roundings of numbers near 1.
    tolerance = {"rtol": 0, "atol": 4 * torch.finfo(dtype).eps}
    torch.testing.assert_close(context, wanted.context, **tolerance)
    torch.testing.assert_close(pattern.dense(), wanted.weights)
    gradients = torch.autograd.grad(context.sum(), laid_out)
    assert all(bool(g.isfinite().all()) for g in gradients)


@pytest.mark.parametrize("backend", ON_CPU)
def test_autocast_has_no_effect_inside(backend):
    """The dtype of the tensors decides, as they come from layers that autocast has dealt with."""
    query, key, value = normal(2, 37, 8), normal(2, 41, 8, seed=1), normal(2, 41, 5, seed=2)
    value[1, -1] = torch.inf  # which takes another way
    readouts = TopK(3), Entropy(), Received(), Distance(), Offsets(4), Mass([0, 3]), Image(3, 4)

    def results():
        for tensors in ((query, key, value), (query[:1], key[:1], value[:1])):
            chosen = backend if bool(tensors[2].isfinite().all()) else None
            context, pattern = regard.attention_with_pattern(
                *tensors, mask=regard.causal(), backend=chosen
            )
            top, *rest = pattern.read(*readouts)
            steps = regard.explain(*tensors, mask=regard.causal())
            yield from (context, steps.weights, steps.context, pattern.dense(), *top, *rest)
            yield from (pattern @ tensors[2], context.nan_to_num().mT @ pattern)

    expected = list(results())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for result, wanted in zip(results(), expected, strict=True):
            assert result.dtype == wanted.dtype
            assert torch.equal(result.nan_to_num(), wanted.nan_to_num())


def test_inputs_are_not_modified():
    query, key, value = normal(2, 3, 5, 8), normal(2, 3, 7, 8, seed=1), normal(2, 3, 7, 4, seed=2)
    bias, sink = normal(5, 7, seed=3), normal(3, seed=4)
    before = [t.clone() for t in (query, key, value, bias, sink)]
    for backend in ON_CPU:
        _, pattern = regard.attention_with_pattern(
            query, key, value, bias=bias, sink=sink, backend=backend
        )
        pattern.read(TopK(2), Entropy(), Image(2, 2))
        pattern.dense().zero_()
        pattern.logsumexp.clone()
    for tensor, old in zip((query, key, value, bias, sink), before, strict=True):
        assert torch.equal(tensor, old)
    assert bool(pattern.dense().any())
