"""Values that the forward pass packs once for several blocks of queries.

A task takes several blocks only where there are at least 32 of them. Each block is computed alone
as well, in a call in which nothing is kept, and both have the same bits.
"""

import math
from functools import partial

import pytest
import torch
from support.cpu_paths import SETS

import regard
from regard.pattern.readouts import Entropy, Received

pytestmark = [
    pytest.mark.skipif(not SETS, reason="needs the native library"),
    pytest.mark.usefixtures("instructions"),
]

ROWS = 64  # of a block with the widest vectors; a multiple of those with others
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
# Of the largest result, of which half precision keeps 8 and 11 bits; weights are rounded as well.
# In float32 a sum of 331 products rounds.
TOLERANCE = {torch.bfloat16: 2**-7, torch.float16: 2**-10, torch.float32: 1e-5}


def tensors(batch, heads, groups, length, dim, dim_value, dtype):
    generator = torch.Generator().manual_seed(11)
    shapes = ((heads, dim), (groups, dim), (groups, dim_value))
    return [torch.randn(batch, h, length, d, generator=generator).to(dtype) for h, d in shapes]


def document_ids(*lengths):
    return torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))


def keys_before(stop, rows):
    return regard.masks.intervals(torch.zeros_like(stop[rows]), stop[rows], offset=rows.start)


def masks(length):
    """The masks of some queries, a slice, by name."""
    ids = document_ids(37, 64, 1, 2, 129, length - 233)
    position = torch.arange(length)
    # Blocks are computed from the last to the first, and here the first ones see more keys.
    stops = {"shrinking": length - position, "one more": 202 - (position >= 3 * ROWS).long()}

    def placed(make):
        return lambda rows: make(rows.start)

    return {
        "causal": placed(lambda offset: regard.causal(offset=offset)),
        "window": placed(
            lambda offset: regard.causal(offset=offset) & regard.window(54, offset=offset)
        ),
        "ahead": placed(lambda offset: regard.window(9, ahead=31, offset=offset)),
        "documents": placed(
            lambda offset: regard.documents(ids, offset=offset) & regard.causal(offset=offset)
        ),
        "padding": placed(
            lambda offset: regard.causal(offset=offset) & regard.padding(position >= 5)
        ),
        "everything": placed(lambda offset: regard.window(length, ahead=length, offset=offset)),
        **{name: partial(keys_before, stop) for name, stop in stops.items()},
    }


def block_by_block(query, key, value, mask):
    """Compute each head's blocks in a call of their own."""
    context = torch.empty(*query.shape[:-1], value.shape[-1], dtype=query.dtype)
    for head in range(query.shape[1]):
        group = head * key.shape[1] // query.shape[1]
        for first in range(0, query.shape[2], ROWS):
            rows = slice(first, min(first + ROWS, query.shape[2]))
            context[:, head, rows] = regard.attention(
                query[:, head, rows], key[:, group], value[:, group], mask=mask(rows)
            )
    return context


@pytest.mark.each_once
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", masks(331))
def test_blocks_are_bitwise_independent_of_each_other(name, dtype, threads):
    length, mask = 331, masks(331)[name]  # six blocks with the widest vectors
    query, key, value = tensors(1, 13, 13, length, 17, 35, dtype)
    exact = regard.attention(
        query.double(), key.double(), value.double(), mask=mask(slice(0, length)), backend="eager"
    )
    threads(1)
    alone = block_by_block(query, key, value, mask)
    for count in (1, 2):  # a task takes fewer blocks where there are more threads
        threads(count)
        context = regard.attention(query, key, value, mask=mask(slice(0, length)), backend="native")
        assert torch.equal(context, alone)
        assert (context - exact).abs().max() <= TOLERANCE[dtype] * exact.abs().max()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", masks(1061))
def test_the_pass_with_readouts_equals_the_forward_pass_bitwise(name, dtype, threads):
    length, mask = 1061, masks(1061)[name](slice(0, 1061))  # two or three blocks a chunk of rows
    tensors_of_heads = tensors(1, 3, 3, length, 17, 35, dtype)
    threads(1)
    context = regard.attention(*tensors_of_heads, mask=mask, backend="native")
    of_reading, _ = regard.attention(*tensors_of_heads, mask=mask, read=[Received(), Entropy()])
    assert torch.equal(of_reading, context)


def test_heads_of_a_group_share_what_is_packed(threads):
    threads(1)
    query, key, value = tensors(3, 10, 2, 331, 16, 35, torch.bfloat16)
    for mask in (regard.causal(), regard.causal() & regard.window(54)):
        context = regard.attention(query, key, value, mask=mask, backend="native")
        exact = regard.attention(
            query.double(), key.double(), value.double(), mask=mask, backend="eager"
        )
        error = (context - exact).abs().max() / exact.abs().max()
        assert error <= TOLERANCE[torch.bfloat16]


def test_more_keys_than_fit_in_the_packing_buffer(threads):
    threads(1)
    # 2 MiB hold 4,096 keys of 256 numbers, in bfloat16 or, where they are widened, half as many.
    length = 5101
    query, key, value = tensors(1, 1, 1, length, 3, 256, torch.bfloat16)
    for mask in (masks(length)["causal"], masks(length)["documents"]):
        context = regard.attention(query, key, value, mask=mask(slice(0, length)), backend="native")
        assert torch.equal(context, block_by_block(query, key, value, mask))


@pytest.mark.parametrize("extreme", [math.inf, math.nan])
@pytest.mark.parametrize("name", ["documents", "stops"])
def test_a_hidden_value_after_the_last_visible_one_has_no_effect(name, extreme, threads):
    threads(1)
    ids = document_ids(37, 64, 1, 2, 129, 98)
    length = len(ids)
    if name == "documents":
        mask = regard.causal() & regard.documents(ids)
        soiled = rows = ids % 2 == 1
    else:  # the first blocks see an odd number of keys, all of them; the last ones see more
        position = torch.arange(length)
        rows, soiled = position >= 3 * ROWS, position >= 201
        stop = torch.where(rows, length, 201)
        mask = regard.masks.intervals(torch.zeros_like(stop), stop)
    query, key, value = tensors(1, 13, 13, length, 17, 35, torch.bfloat16)
    clean = regard.attention(query, key, value, mask=mask, backend="native")
    value[..., soiled, :] = extreme
    context = regard.attention(query, key, value, mask=mask, backend="native")
    assert torch.equal(context[..., ~rows, :], clean[..., ~rows, :])
    assert not context[..., rows, :].isfinite().any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_without_elements(dtype):
    query, key, value = tensors(1, 2, 2, 67, 3, 0, dtype)
    context = regard.attention(query, key, value, mask=regard.causal(), backend="native")
    assert context.shape == (1, 2, 67, 0)
