"""Sizes around those of an AMX tile, 16 rows of 32 elements."""

import pytest
import torch
from support import cases
from support.cpu_paths import SETS
from support.draws import normal

import regard

pytestmark = [
    pytest.mark.skipif(not SETS, reason="needs the native library"),
    pytest.mark.usefixtures("instructions"),
]

MASKS = {  # of so many tokens
    "all": lambda _: regard.Mask(),
    "causal": lambda _: regard.causal(),
    "window": lambda _: regard.causal() & regard.window(23),
    "documents": lambda length: regard.documents(torch.arange(length) // 31),
}
SIZES = [1, 15, 16, 17, 31, 32, 33, 47, 65]


def tensors(queries, keys, dim, dim_value):
    return [
        normal(1, heads, length, size, seed=seed, dtype=torch.bfloat16)
        for seed, (heads, length, size) in enumerate(
            [(2, queries, dim), (1, keys, dim), (1, keys, dim_value)]
        )
    ]


def context_and_gradients(attend, leaves, mask):
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    context = attend(*leaves, mask=mask)
    weight = normal(*context.shape, seed=7).to(context.dtype)
    return [context.detach(), *torch.autograd.grad(context, leaves, weight)]


def check(leaves, mask):
    """Compare with the definition: what is summed up and what comes out is rounded to 8 bits."""
    ours = context_and_gradients(regard.attention, leaves, mask)
    exact = context_and_gradients(
        lambda *leaves, mask: regard.explain(*leaves, mask=mask).context,
        [leaf.double() for leaf in leaves],
        mask,
    )
    for one, wanted in zip(ours, exact, strict=True):
        assert cases.error(one, wanted) <= 4 * 2**-7 * float(wanted.abs().max())


@pytest.mark.parametrize("dim", SIZES)
def test_head_dimensions(dim):
    check(tensors(67, 131, dim, dim + 1), regard.causal())
    check(tensors(67, 131, dim + 16, dim), regard.Mask())


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("length", [size + 192 for size in (1, 15, 16, 17, 19)])
def test_lengths(length, name):
    leaves = tensors(length, length, 37, 53)
    check(leaves, MASKS[name](length))


@pytest.mark.parametrize("keys", SIZES[1:])
def test_numbers_of_keys(keys):
    check(tensors(83, keys, 64, 64), regard.Mask())


@pytest.mark.parametrize("queries", [16, 17, 33, 65])
def test_an_infinite_key_that_weighs_nothing_leaves_gradients_finite(queries):
    """Of an odd number of queries the last makes a pair with a lane that holds none."""
    query, key, value = tensors(queries, 61, 32, 32)
    query, infinite = query[:, :1].abs() + 1, 3
    key[..., infinite, 5] = -torch.inf
    finite = [leaf[..., torch.arange(61) != infinite, :] for leaf in (key, value)]
    wanted = context_and_gradients(regard.attention, [query, *finite], regard.Mask())
    got = context_and_gradients(regard.attention, [query, key, value], regard.Mask())
    for gradient, expected in zip(got[2:], wanted[2:], strict=True):
        assert (gradient[..., infinite, :] == 0).all()
        others = gradient[..., torch.arange(61) != infinite, :]
        torch.testing.assert_close(others, expected, rtol=2**-5, atol=2**-6)


def test_torch_s_products_between_calls_have_no_effect(threads):
    """Torch's library multiplies in tiles of other sizes, on the same threads."""
    threads(2)
    leaves = tensors(1021, 1021, 64, 64)
    matrix = normal(509, 251, seed=3, dtype=torch.bfloat16)
    pattern = regard.Pattern(*leaves[:2], mask=regard.causal())

    def both():
        return regard.attention(*leaves, mask=regard.causal()), pattern.received()

    before = both()
    for rows in (509, 3, 131):
        product = matrix[:rows] @ matrix.T
        assert all(torch.equal(one, other) for one, other in zip(before, both(), strict=True))
        assert torch.equal(product, matrix[:rows] @ matrix.T)
