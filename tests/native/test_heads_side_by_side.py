"""Interleaved heads, as in models: rows are packed for several blocks of queries.

A row of one head is then a whole row of the model away from the next. Whether rows are copied or
multiplied where they lie, the sums are the same, so that results have the bits of heads apart.
"""

from functools import partial

import pytest
import torch
from support.cpu_paths import SETS

import regard

pytestmark = [
    pytest.mark.skipif(not SETS, reason="needs the native library"),
    pytest.mark.usefixtures("instructions"),
]

QUERIES = 1031  # 17 blocks with the widest vectors: with fewer than 16 nothing is copied
# Query heads, key heads, keys, channels of key and value. With more keys than there is room for,
# some are copied and some not; channels that do not fill vectors are copied in another form.
SHAPES = [
    pytest.param((5, 5, 1031, 16, 32), id="all keys at once"),
    pytest.param((6, 2, 1031, 16, 16), id="grouped"),
    pytest.param((5, 5, 1031, 17, 35), id="part of a vector"),
    pytest.param((4, 4, 2309, 256, 256), id="more keys than there is room for"),
]


def side_by_side(tensor):
    """The same numbers, (B, H, L, D), with heads next to each other in memory."""
    batch, heads, length, dim = tensor.shape
    wide = tensor.new_empty(batch, length, 3, heads, dim)[:, :, 1].transpose(1, 2)
    return wide.copy_(tensor)


def inputs(heads, groups, keys, dim, dim_value):
    generator = torch.Generator().manual_seed(heads)
    shapes = ((heads, QUERIES, dim), (groups, keys, dim), (groups, keys, dim_value))
    return [torch.randn(1, *shape, generator=generator) for shape in shapes]


def masks(keys):
    offset = keys - QUERIES
    ids = torch.arange(5).repeat_interleave(torch.tensor([303, 1, 2, 301, keys - 607]))
    return {
        "causal": regard.causal(offset=offset),
        "window": regard.causal(offset=offset) & regard.window(203, offset=offset),
        "documents": regard.documents(ids, offset=offset) & regard.causal(offset=offset),
        "all": regard.padding(torch.ones(keys, dtype=torch.bool)),
        "hidden": regard.causal(offset=offset) & regard.masks.hide(keys=slice(37, 61)),
    }


def assert_same_bits(compute, tensors):
    """Compute from heads apart and side by side; the results are one or several tensors."""
    apart, beside = compute(*tensors), compute(*map(side_by_side, tensors))
    if isinstance(apart, torch.Tensor):
        apart, beside = [apart], [beside]
    for one, other in zip(apart, beside, strict=True):
        assert torch.equal(one, other)


def readings(read, *tensors, mask):
    return read(
        *tensors,
        mask,
        [regard.readouts.Received(), regard.readouts.Entropy(), regard.readouts.TopK(3)],
    )


def with_forward(query, key, value, mask, kinds):
    context, (received, entropy, top) = regard.attention(query, key, value, mask=mask, read=kinds)
    return context, received, entropy, top.weights, top.positions


def after_forward(query, key, value, mask, kinds):
    _, pattern = regard.attention_with_pattern(query, key, value, mask=mask)
    received, entropy, top = pattern.read(*kinds)
    return received, entropy, top.weights, top.positions


def without_forward(query, key, _value, mask, kinds):
    received, entropy, top = regard.Pattern(query, key, mask=mask).read(*kinds)
    return received, entropy, top.weights, top.positions


def gradients(query, key, value, mask):
    leaves = [tensor.detach().requires_grad_() for tensor in (query, key, value)]
    context = regard.attention(*leaves, mask=mask)
    weights = torch.linspace(-1, 1, context.shape[-1])
    return torch.autograd.grad((context * weights).sum(), leaves)


@pytest.mark.each_once
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mask", ["causal", "window", "documents", "all", "hidden"])
def test_context(shape, mask, threads):
    threads(1)  # with more, fewer blocks share what is copied
    assert_same_bits(partial(regard.attention, mask=masks(shape[2])[mask]), inputs(*shape))


@pytest.mark.each_once
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mask", ["causal", "window"])
@pytest.mark.parametrize("read", [with_forward, after_forward, without_forward])
def test_readouts(shape, mask, read, threads):
    threads(1)
    assert_same_bits(partial(readings, read, mask=masks(shape[2])[mask]), inputs(*shape))


@pytest.mark.parametrize("shape", SHAPES[:-1])
@pytest.mark.parametrize("mask", ["causal", "documents"])
def test_gradients(shape, mask):
    assert_same_bits(partial(gradients, mask=masks(shape[2])[mask]), inputs(*shape))


def test_hidden_values_do_not_affect_results(threads):
    threads(1)
    query, key, value = inputs(5, 5, QUERIES, 16, 32)
    key[..., 700:, :], value[..., 700:, :] = torch.nan, torch.inf
    attend = partial(regard.attention, mask=regard.causal())
    assert_same_bits(lambda *tensors: attend(*tensors)[..., :700, :], [query, key, value])
    assert attend(*map(side_by_side, (query, key, value)))[..., :700, :].isfinite().all()
