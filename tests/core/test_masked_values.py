"""Masked values never reach a result, and visible ones always do: NaN, infinity, overflow."""

import math

import pytest
import torch
from support.cpu_paths import ON_CPU
from support.patterns import flat

import regard
from regard.pattern.readouts import Distance, Entropy, Image, Mass, Offsets, Received, TopK

pytestmark = pytest.mark.usefixtures("instructions")

B, H, G, L, S, D, DV = 2, 4, 2, 5, 11, 7, 3
READOUTS = (TopK(3), Entropy(), Received(), Distance(), Offsets(4), Mass(slice(2, 6)), Image(2, 3))
# NaN, infinity, and a number as uninitialised memory may hold it: the product of two such
# overflows, and ∞ − ∞ is NaN.
EXTREMES = (math.nan, -math.inf, 3e38)


def masks():
    """Masks that hide key 4 from every query, or from some."""
    ids = torch.tensor([0, 0, 0, 0, 1, 2, 2, 2, 2, 2, 2])
    keep = torch.ones(B, S, dtype=torch.bool)
    keep[:, :5] = False
    some = torch.ones(L, S, dtype=torch.bool)
    some[:, 4] = False
    return {
        "causal": regard.causal(offset=-1),
        "window": regard.causal() & regard.window(2),
        "padding": regard.padding(keep),
        "documents": regard.documents(ids, offset=6),
        "dense": regard.dense(some),
        "bias": regard.dense(torch.zeros(L, S).masked_fill(~some, -torch.inf)),
    }


OPTIONS = {
    "plain": {},
    "softcap": {"softcap": 3.0},
    "alibi": {"alibi": torch.tensor([0.5, 0.25, 0.125, 0.0625])},
    "bias": {"bias": torch.linspace(-1, 1, L * S).reshape(L, S)},
    "sink": {"sink": torch.tensor([0.0, 1.0, -1.0, 2.0])},
    "scale": {"scale": 2.0},
}


def inputs(dtype=torch.float32):
    generator = torch.Generator().manual_seed(5)
    shapes = (B, H, L, D), (B, G, S, D), (B, G, S, DV)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def run(query, key, value, backend, **options):
    """Context, gradients of a loss over all of it, and the pattern."""
    tensors = [t.clone().requires_grad_() for t in (query, key, value)]
    context, pattern = regard.attention_with_pattern(*tensors, **options, backend=backend)
    gradients = torch.autograd.grad(context.square().sum(), tensors)
    return context.detach(), gradients, pattern


PAIRS = [(m, "plain") for m in masks()] + [(m, o) for m in ("causal", "dense") for o in OPTIONS]


@pytest.mark.each_once
@pytest.mark.parametrize(("name", "option"), dict.fromkeys(PAIRS))
@pytest.mark.parametrize("extreme", EXTREMES)
def test_masked_values_never_reach_results_or_gradients(extreme, name, option):
    mask, options = masks()[name], OPTIONS[option]
    query, key, value = inputs()
    hidden = ~mask.visible(L, S, (B, H)).any(dim=(0, 1, 2))  # keys that no query sees
    assert bool(hidden[4])
    clean = run(query, key, value, None, mask=mask, **options)
    poisoned_key, poisoned_value = key.clone(), value.clone()
    poisoned_key[..., hidden, :] = extreme
    poisoned_value[..., hidden, :] = extreme
    soiled = run(query, poisoned_key, poisoned_value, None, mask=mask, **options)

    # The same numbers but for the rounding of another backend, which the soiled ones may need.
    torch.testing.assert_close(soiled[0], clean[0])
    for gradient, expected in zip(soiled[1], clean[1], strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)
    assert not any(bool(g[..., hidden, :].any()) for g in soiled[1][1:])
    for result, expected in zip(
        flat(soiled[2].read(*READOUTS)), flat(clean[2].read(*READOUTS)), strict=True
    ):
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(soiled[2].dense(), clean[2].dense(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(soiled[2] @ poisoned_value.repeat_interleave(2, 1), soiled[0])
    assert soiled[2].verify() < 1e-5


@pytest.mark.parametrize("extreme", [math.nan, math.inf, 3e38])
def test_padding_of_one_sequence_does_not_affect_the_others(extreme):
    query, key, value = inputs()
    keep = torch.ones(B, S, dtype=torch.bool)
    keep[1, 8:] = False
    mask = regard.padding(keep)
    expected = run(query, key, value, None, mask=mask)
    key[1, :, 8:] = extreme
    value[1, :, 8:] = extreme
    result = run(query, key, value, None, mask=mask)
    torch.testing.assert_close(result[0], expected[0])
    for gradient, wanted in zip(result[1], expected[1], strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", [None, "eager"])
@pytest.mark.parametrize("mask", [None, regard.causal(), regard.window(3, ahead=1)])
@pytest.mark.parametrize("where", ["query", "key", "value"])
def test_a_visible_nan_propagates_only_to_rows_that_see_it(where, mask, backend):
    tensors = dict(zip(("query", "key", "value"), inputs(), strict=True))
    at = 2 if where == "query" else 8  # key 8 is visible to some of the queries
    tensors[where][1, 0, at] = math.nan  # which heads 0 and 1 share, but for the query
    visible = (regard.Mask() if mask is None else mask).visible(L, S, (B, H))
    affected = torch.zeros(B, H, L, dtype=torch.bool)
    if where == "query":
        affected[1, 0, at] = True
    else:
        affected[1, :2] = visible[1, :2, :, at]
        assert bool(affected.any())
    context, pattern = regard.attention_with_pattern(**tensors, mask=mask, backend=backend)
    assert torch.equal(context.isnan(), affected[..., None].expand(context.shape))
    if where == "value":
        return
    steps = regard.explain(**tensors, mask=mask)
    in_weights = affected[..., None] & visible
    assert torch.equal(steps.weights.isnan(), in_weights)
    both = tensors["value"].repeat_interleave(2, 1)
    for seen in (pattern, regard.Pattern(tensors["query"], tensors["key"], mask=mask)):
        assert torch.equal(seen.dense().isnan(), in_weights)
        top, entropy, received, distance, *_ = seen.read(*READOUTS)
        assert torch.equal(entropy.isnan(), affected)
        assert torch.equal(distance.isnan(), affected)
        assert torch.equal(received.isnan(), in_weights.any(-2))
        assert torch.equal(top.weights.isnan().any(-1), affected)
        actual = top.positions >= 0
        assert torch.equal(actual.sum(-1), visible.sum(-1).clamp_max(3))
        assert bool(visible.gather(-1, top.positions.clamp_min(0))[actual].all())
        assert torch.equal(seen.image(L, S).isnan(), in_weights)
        assert torch.equal((seen @ both).isnan(), context.isnan())
        assert seen.verify() < 1e-5


@pytest.mark.parametrize("backend", [None, "eager"])
def test_a_nan_of_a_query_reaches_the_gradients_of_the_keys_that_it_sees_alone(backend):
    query, key, value = inputs()
    query[:, :, 1] = math.nan
    mask = regard.causal(offset=2)
    tensors = [tensor.requires_grad_() for tensor in (key, value)]
    context = regard.attention(query, *tensors, mask=mask, backend=backend)
    seen = mask.visible(L, S)[1]
    for gradient in torch.autograd.grad(context.sum(), tensors):
        assert torch.equal(gradient.isnan().any(dim=-1), seen.expand(B, G, S))


@pytest.mark.parametrize("mask", [None, regard.causal()])
def test_a_visible_infinity_is_what_the_definition_makes_of_it(mask):
    query, key, value = inputs()
    key[0, 0, 8, 2] = math.inf  # a score of ±∞, by the sign of the query
    value[1, 1, 7, 0], value[1, 1, 8, 0], value[1, 0, 7, 1] = math.inf, -math.inf, -math.inf
    steps = regard.explain(query, key, value, mask=mask)
    assert bool(steps.scores.isinf().any())
    assert bool(steps.context.isinf().any())
    context, pattern = regard.attention_with_pattern(query, key, value, mask=mask)
    torch.testing.assert_close(context, steps.context, equal_nan=True)
    entropy = torch.special.entr(steps.weights).sum(-1)
    for seen in (pattern, regard.Pattern(query, key, mask=mask)):
        torch.testing.assert_close(seen.dense(), steps.weights, equal_nan=True)
        torch.testing.assert_close(seen.entropy(), entropy, equal_nan=True)


@pytest.mark.parametrize("backend", ON_CPU)
def test_a_nan_in_a_bias_or_a_sink_propagates(backend):
    query, key, value = inputs()
    bias = torch.zeros(L, S)
    bias[2, 3] = math.nan
    context = regard.attention(query, key, value, bias=bias, backend=backend)
    assert context.isnan().any(-1).all((0, 1)).tolist() == [False, False, True, False, False]
    assert context.isnan().any(-1).any(0).any(0).tolist() == [False, False, True, False, False]
    sink = torch.tensor([0.0, math.nan, 0.0, 0.0])
    context, pattern = regard.attention_with_pattern(query, key, value, sink=sink, backend=backend)
    assert context.isnan().all(-1).all(-1).tolist() == [[False, True, False, False]] * B
    assert pattern.dense().isnan().flatten(2).all(-1).tolist() == [[False, True, False, False]] * B


@pytest.mark.parametrize("backend", ON_CPU)
def test_a_masked_nan_in_a_bias_does_not_propagate(backend):
    tensors = [t.requires_grad_() for t in inputs()]
    bias = torch.zeros(L, S)
    bias[0], bias[1, 4:] = math.nan, math.nan  # a row that sees nothing, and one that sees some
    mask = regard.causal(offset=-1)
    context, pattern = regard.attention_with_pattern(
        *tensors, mask=mask, bias=bias, backend=backend
    )
    gradients = torch.autograd.grad(context.sum(), tensors)
    assert not any(bool(t.isnan().any()) for t in (context, pattern.dense(), *gradients))


@pytest.mark.parametrize("backend", ON_CPU)
@pytest.mark.parametrize("sink", [None, torch.tensor([0.0, 1.0, -1.0, 2.0])])
def test_fully_masked_rows(sink, backend):
    """Context 0, logsumexp −∞, gradient 0, never NaN."""
    tensors = inputs()
    mask = regard.causal(offset=-2)  # queries 0 and 1 stand before the first key
    if sink is None:
        context, gradients, pattern = run(*tensors, backend, mask=mask)
        assert not bool(gradients[0][:, :, :2].any())
        assert all(bool(g.isfinite().all()) for g in gradients)
        assert bool(gradients[0][:, :, 3:].any(-1).all())
    else:
        context, pattern = regard.attention_with_pattern(
            *tensors, mask=mask, sink=sink, backend=backend
        )
    assert not bool(context[:, :, :2].any())
    assert bool((pattern.logsumexp[:, :, :2] == -torch.inf).all())
    assert bool(pattern.logsumexp[:, :, 2:].isfinite().all())
    for seen in (pattern, regard.Pattern(*tensors[:2], mask=mask, sink=sink)):
        assert not bool(seen[:, :, :2, :].any())
        results = flat(seen.read(*READOUTS))
        assert not any(bool(t.isnan().any()) for t in results)
        assert bool((seen.topk(2).positions[:, :, :2] == -1).all())
        for rows in (seen.entropy(), seen.distance(), seen.mass(slice(None))):
            assert not bool(rows[:, :, :2].any())
        assert seen.verify() < 1e-6


@pytest.mark.parametrize("backend", ON_CPU)
def test_a_mask_that_hides_everything(backend):
    tensors = inputs()
    nothing = regard.dense(torch.zeros(1, 1, dtype=torch.bool))
    context, gradients, pattern = run(*tensors, backend, mask=nothing)
    assert not any(bool(t.any()) for t in (context, *gradients, pattern.dense()))
    assert bool((pattern.logsumexp == -torch.inf).all())
    assert not any(bool(t.nan_to_num(7).any()) for t in flat(pattern.read(*READOUTS[1:])))


def test_gradients_of_bias_alibi_and_sink_ignore_fully_masked_rows():
    tensors = inputs(torch.float64)
    extras = {
        "bias": torch.zeros(L, S, dtype=torch.float64),
        "alibi": torch.ones(H, dtype=torch.float64),
        "sink": torch.zeros(H, dtype=torch.float64),
    }
    extras = {name: t.requires_grad_() for name, t in extras.items()}
    mask = regard.causal(offset=-2)
    context = regard.attention(*tensors, mask=mask, **extras)
    gradients = dict(zip(extras, torch.autograd.grad(context.sum(), extras.values()), strict=True))
    assert all(bool(g.isfinite().all()) for g in gradients.values())
    assert not bool(gradients["bias"][~mask.visible(L, S)].any())
