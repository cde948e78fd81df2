"""Dropout of weights: reproducible, scaled, and right on average."""

import math

import pytest
import torch
from support import oracle

import regard
from regard.inputs.dropout import draw_seed


def generator(seed=3):
    return torch.Generator().manual_seed(seed)


def number(seed):
    """A seed as one integer of 64 bits."""
    low, high = seed.tolist()
    return low | high << 32


def inputs(dtype=torch.float32):
    shapes = (2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 3)
    return [torch.randn(s, generator=generator(i)).to(dtype) for i, s in enumerate(shapes)]


@pytest.mark.parametrize("mask", [None, regard.causal(), regard.causal(offset=-1)])
def test_dropout_is_the_definition(mask):
    query, key, value = inputs(torch.float64)
    steps = regard.explain(query, key, value, mask=mask, dropout=0.25, generator=generator())
    visible = (regard.Mask() if mask is None else mask).visible(5, 7, (2, 4))
    keep_mask = oracle.keep_mask(number(draw_seed(generator())), 0.25, (2, 4, 5, 7))
    exact = oracle.attend(
        query, key, value, visible=visible, positions=None, keep_mask=keep_mask, dropout=0.25
    )
    torch.testing.assert_close(steps.weights, exact.weights)
    torch.testing.assert_close(steps.dropped, exact.weights * keep_mask / 0.75)
    torch.testing.assert_close(steps.context, exact.context)
    torch.testing.assert_close(steps.logsumexp, exact.logsumexp)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_same_generator_gives_the_same_everywhere(dtype):
    query, key, value = inputs(dtype)
    options = {"mask": regard.causal(), "dropout": 0.4}
    context = regard.attention(query, key, value, **options, generator=generator())
    steps = regard.explain(query, key, value, **options, generator=generator())
    # The same weights fall; the rest is summed up by another kernel, which rounds in its own way.
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(context, steps.context, rtol=4 * eps, atol=4 * eps)
    again = regard.attention(query, key, value, **options, generator=generator())
    assert torch.equal(context, again)
    other = regard.attention(query, key, value, **options, generator=generator(4))
    assert not torch.equal(context, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_same_generator_gives_the_same_gradients_everywhere(dtype):
    tensors = [t.requires_grad_() for t in inputs(dtype)]

    def gradients(call, seed=3):
        context = call(*tensors, mask=regard.causal(), dropout=0.4, generator=generator(seed))
        return torch.autograd.grad(context.square().sum(), tensors)

    once = gradients(regard.attention)
    assert all(map(torch.equal, once, gradients(regard.attention)))
    explained = gradients(lambda *tensors, **options: regard.explain(*tensors, **options).context)
    # The same weights fall; another kernel rounds in its own way, here up to sums of 20 terms.
    eps = torch.finfo(dtype).eps
    for one, other in zip(once, explained, strict=True):
        torch.testing.assert_close(one, other, rtol=20 * eps, atol=20 * eps)
    assert not any(map(torch.equal, once, gradients(regard.attention, seed=4)))


def test_the_backward_drops_what_the_forward_dropped():
    query, key, value = inputs(torch.float64)
    value.requires_grad_()
    context = regard.attention(query, key, value, dropout=0.4, generator=generator())
    (gradient,) = torch.autograd.grad(context.sum(), value)
    weights = regard.explain(query, key, value).weights.detach()
    dropped = weights * oracle.keep_mask(number(draw_seed(generator())), 0.4, (2, 4, 5, 7)) / 0.6
    received = dropped.sum(-2).unflatten(1, (2, 2)).sum(2)  # by each key, of its group of heads
    torch.testing.assert_close(gradient, received[..., None].expand(2, 2, 7, 3))


@pytest.mark.parametrize("leading", [(6,), (1, 2, 3), (2, 1, 3), (3, 2)])
def test_kept_weights_do_not_depend_on_leading_dimensions(leading):
    query, key, value = (torch.randn(2, 3, n, 8, generator=generator(n)) for n in (5, 7, 7))

    def dropped(*lead):
        tensors = (t.reshape(*lead, *t.shape[-2:]) for t in (query, key, value))
        return regard.explain(*tensors, dropout=0.4, generator=generator()).dropped

    assert torch.equal(dropped(*leading).reshape(2, 3, 5, 7) == 0, dropped(2, 3) == 0)


def test_without_a_generator_torch_s_seed_is_used():
    tensors = inputs()
    torch.manual_seed(5)
    one = regard.attention(*tensors, dropout=0.4)
    torch.manual_seed(5)
    assert torch.equal(one, regard.attention(*tensors, dropout=0.4))
    assert not torch.equal(one, regard.attention(*tensors, dropout=0.4))


def test_kept_weights_are_scaled_and_the_rest_is_zero():
    steps = regard.explain(*inputs(), mask=regard.causal(), dropout=0.25, generator=generator())
    kept = steps.dropped != 0
    torch.testing.assert_close(steps.dropped[kept], steps.weights[kept] / 0.75)
    visible = steps.weights != 0
    share = float(kept[visible].float().mean())
    count = int(visible.sum())
    # Five standard deviations of a mean of coin tosses.
    assert abs(share - 0.75) < 5 * math.sqrt(0.25 * 0.75 / count)


def test_dropout_preserves_the_mean():
    torch.manual_seed(1)
    value, draws = torch.randn(7, 3), 20_000
    query, key = torch.randn(1, 8).expand(draws, 1, 8), torch.randn(7, 8).expand(draws, 7, 8)
    contexts = regard.attention(
        query, key, value.expand(draws, 7, 3), dropout=0.5, generator=generator()
    )
    expected = regard.attention(query[0], key[0], value)
    deviation = contexts.std(0) / math.sqrt(draws)
    # Five standard errors of the mean, of three numbers.
    assert bool(((contexts.mean(0) - expected).abs() < 5 * deviation).all())


def test_dropout_of_zero_and_of_one():
    tensors = inputs()
    plain = regard.attention(*tensors)
    assert torch.equal(plain, regard.attention(*tensors, dropout=0.0))
    assert not bool(regard.attention(*tensors, dropout=1.0).any())
    tensors = [t.requires_grad_() for t in tensors]
    context = regard.attention(*tensors, dropout=1.0)
    assert not any(bool(g.any()) for g in torch.autograd.grad(context.sum(), tensors))


def test_the_pattern_is_that_before_dropout():
    tensors = inputs()
    _, pattern = regard.attention_with_pattern(*tensors, dropout=0.5)
    torch.testing.assert_close(pattern.dense(), regard.explain(*tensors).weights)


def test_gradients_flow_through_kept_weights_alone():
    tensors = [t.requires_grad_() for t in inputs(torch.float64)]

    def context(*tensors):
        return regard.attention(*tensors, dropout=0.3, generator=generator())

    assert torch.autograd.gradcheck(context, tuple(tensors), fast_mode=True)
