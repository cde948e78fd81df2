"""Weights below 2⁻¹²⁶ are flushed to 0, since subnormals cost x86 a hundred cycles."""

import pytest
import torch
from support.cpu_paths import EACH_SET, SETS, forced

import regard

pytestmark = [
    pytest.mark.skipif(not SETS, reason="needs the native library"),
    pytest.mark.parametrize("name", EACH_SET),
]

SMALLEST = torch.finfo(torch.float32).smallest_normal
S, D = 1031, 7
SLOPE = 0.25  # from key to key: weights reach 2⁻¹²⁶ after some 350 keys


@pytest.fixture
def sloping(name):
    """Query, key, value of one head, and options by which weights fall by e^−SLOPE a key."""
    generator = torch.Generator().manual_seed(3)
    value = torch.randn(1, S, D, generator=generator)
    with forced(name):
        yield torch.zeros(1, S, D), torch.zeros(1, S, D), value, {"alibi": torch.tensor([SLOPE])}


def weights(mask):
    """The definition, in float64."""
    apart = (torch.arange(S)[:, None] - torch.arange(S)).abs()
    scores = -SLOPE * apart.double()
    if mask is not None:
        scores = scores.masked_fill(~mask.visible(S, S), -torch.inf)
    return scores.softmax(-1)[None]


@pytest.mark.parametrize("mask", [None, regard.causal()], ids=repr)
def test_weights_are_zero_or_exact(sloping, mask):
    query, key, value, options = sloping
    context, pattern = regard.attention_with_pattern(query, key, value, mask=mask, **options)
    exact, dense = weights(mask), pattern.dense()
    assert bool((exact[..., 0] < SMALLEST / 2).any())
    # A factor of 2 on either side, since a log-sum-exp is rounded; the exponent's rounding, 87
    # nats of 2⁻²⁴ each, comes to 6e-6.
    torch.testing.assert_close(
        dense.double().where(exact > 2 * SMALLEST, exact), exact, rtol=2e-5, atol=0
    )
    assert not bool(dense[exact < SMALLEST / 2].any())
    assert not bool(((dense > 0) & (dense < SMALLEST)).any())
    torch.testing.assert_close(context.double(), exact @ value.double(), rtol=1e-5, atol=1e-6)


def test_each_readout_has_the_same_weights_for_zero(sloping):
    query, key, _, options = sloping
    pattern = regard.Pattern(query, key, mask=regard.causal(), **options)
    dense = pattern.dense()
    for back in (340, 355, 400):  # before 2⁻¹²⁶, after it, and after the denormal numbers
        weight = pattern.lag(back).weights[..., back:]
        assert torch.equal(weight == 0, dense.diagonal(-back, -2, -1) == 0), back
    assert torch.equal(pattern.topk(S).weights.sort().values, dense.sort().values)


@pytest.mark.parametrize("mask", [None, regard.causal()], ids=repr)
def test_gradients_are_those_of_the_definition(sloping, mask):
    *_, value, options = sloping
    generator = torch.Generator().manual_seed(5)
    tensors = [torch.randn(1, S, D, generator=generator) / 8 for _ in range(2)]
    tensors = [tensor.requires_grad_() for tensor in (*tensors, value)]
    gradient = torch.randn(1, S, D, generator=generator)
    actual = torch.autograd.grad(
        regard.attention(*tensors, mask=mask, **options), tensors, gradient
    )
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    expected = torch.autograd.grad(
        regard.attention(*exact, mask=mask, **options), exact, gradient.double()
    )
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)
