"""Spans of keys that are hidden, or whose scores are shifted, within the visible keys."""

import math

import pytest
import torch
from support.cpu_paths import SETS
from support.draws import normal
from support.patterns import flat

import regard
from regard.masks.hiding import add_to_scores
from regard.pattern.readouts import Distance, Entropy, Mass, Max, TopK

pytestmark = pytest.mark.skipif(not SETS, reason="there are no kernels without the library")

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
B, H, G, L, D = 2, 6, 2, 331, 19
HIDDEN = slice(113, 1031 - 317)  # more than a block, and the ends of none
OF_ROWS = (Max(), Entropy(), Distance(), Mass(slice(3, 111)), TopK(5))


def tensors(queries, keys, dtype):
    shapes = (H, queries), (G, keys), (G, keys)
    return [normal(B, *shape, D, seed=i).to(dtype) for i, shape in enumerate(shapes)]


def attend(query, key, value, **options):
    """Context and gradients."""
    inputs = [t.clone().requires_grad_() for t in (query, key, value)]
    context = regard.attention(*inputs, **options, backend="native")
    return context, torch.autograd.grad(context, inputs, normal(*context.shape).to(context.dtype))


def without(tensor, keys):
    return torch.cat([tensor[..., : keys.start, :], tensor[..., keys.stop :, :]], -2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("queries", [1, 3, L])
@pytest.mark.parametrize("options", [{}, {"softcap": 5.0}, {"scale": -0.2}], ids=str)
def test_keys_hidden_from_all_rows_equal_removed_keys(options, queries, dtype, instructions):
    query, key, value = tensors(queries, 1031, dtype)
    for tensor in (key, value):
        tensor[..., HIDDEN, :] = math.nan
    mask = regard.masks.hide(HIDDEN)
    context, gradients = attend(query, key, value, mask=mask, **options)
    expected, others = attend(query, *(without(t, HIDDEN) for t in (key, value)), **options)
    tolerance = 16 * torch.finfo(dtype).eps
    assert torch.allclose(context, expected, tolerance, tolerance)
    for one, other in zip(gradients, others, strict=True):
        if one.shape[-2] == 1031:
            assert not one[..., HIDDEN, :].any()
        kept = without(one, HIDDEN) if one.shape[-2] == 1031 else one
        assert torch.allclose(kept, other, tolerance, tolerance * float(other.abs().max()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_that_no_span_touches_are_bitwise_unchanged(dtype, instructions):
    query, key, value = tensors(L, L, dtype)
    touched = slice(200, 290)
    mask = regard.causal() & regard.masks.hide(slice(20, 70), touched, heads=[0])
    mask &= add_to_scores(0.7, slice(90, 190, 9), touched, heads=[1])
    results = []
    for each in (regard.causal(), mask):
        context = regard.attention(query, key, value, mask=each, backend="native")
        pattern = regard.Pattern(query, key, mask=each)
        results.append((context, pattern.logsumexp, *flat(pattern.read(*OF_ROWS)), pattern.dense()))
    (context, *rows), (other_context, *other_rows) = results
    assert torch.equal(context[:, H // G :], other_context[:, H // G :])  # of another group
    for one, other in zip(rows, other_rows, strict=True):
        assert torch.equal(one[:, 2:], other[:, 2:])
        assert torch.equal(one[:, :, : touched.start], other[:, :, : touched.start])
        assert torch.equal(one[:, :, touched.stop :], other[:, :, touched.stop :])
        assert not torch.equal(one, other)


@pytest.mark.parametrize("queries", [1, 3, L])
def test_results_do_not_depend_on_threads(queries, threads, instructions):
    inputs = tensors(queries, 1031, torch.bfloat16)
    mask = regard.causal() & regard.masks.hide(HIDDEN) & add_to_scores(1.5, slice(None, None, 11))
    results = []
    for count in (1, 2, 3):
        threads(count)
        context, gradients = attend(*inputs, mask=mask)
        results.append((context, *gradients))
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))


def test_problems_mapped_over_share_their_spans():
    query, key, value = (normal(3, *t.shape, seed=9) for t in tensors(7, 23, torch.float32))
    mask = regard.causal() & regard.masks.hide([2, 3, 9], slice(3, None), heads=[0, 1])
    mask &= add_to_scores(0.7, slice(4, 17), heads=slice(2, None))

    def loss(query, key, value):
        return regard.attention(query, key, value, mask=mask, backend="native").square().sum()

    mapped = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(query, key, value)
    for i in range(3):
        alone = torch.func.grad(loss, argnums=(0, 1, 2))(query[i], key[i], value[i])
        for one, other in zip(mapped, alone, strict=True):
            assert torch.allclose(one[i], other, atol=1e-6)


def test_scattered_keys_hidden_one_by_one():
    """As many spans as there are odd keys."""
    query, key, value = tensors(67, 611, torch.float32)
    mask = regard.masks.hide(slice(1, None, 2))
    context = regard.attention(query, key, value, mask=mask, backend="native")
    even = regard.attention(query, key[..., ::2, :], value[..., ::2, :], backend="native")
    assert torch.allclose(context, even, atol=1e-6)
    offsets = regard.Pattern(query, key, mask=mask).offsets(40)
    exact = regard.Pattern(query.double(), key.double(), mask=mask).offsets(40)
    assert torch.allclose(offsets.double(), exact, atol=1e-6)
