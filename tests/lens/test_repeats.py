import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from regard.lens.naming.repeats import ControlledRepeats, Repeats, targets, with_targets


def by_definition(weights, ids, *, following):
    """Sum the weights of each row one key at a time."""
    total = torch.zeros(weights.shape[:-1], dtype=weights.dtype)
    for i in range(len(ids)):
        for j in range(1, i - 1):
            copy = j - 1 if following else j
            if ids[copy] == ids[i]:
                total[..., i] += weights[..., i, j]
    return total


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=23), st.integers(0, 99))
def test_shares_are_those_of_the_definition(ids, seed):
    generator = torch.Generator().manual_seed(seed)
    query, key = torch.randn(2, 3, len(ids), 5, generator=generator, dtype=torch.float64)
    pattern = regard.Pattern(query, key, mask=regard.causal())
    ids = torch.tensor(ids)
    copies, successors = pattern.read(Repeats(ids, following=False), Repeats(ids, following=True))
    dense = pattern.dense()
    # float64 sums of at most 23 weights
    torch.testing.assert_close(
        copies, by_definition(dense, ids, following=False), rtol=0, atol=1e-14
    )
    torch.testing.assert_close(
        successors, by_definition(dense, ids, following=True), rtol=0, atol=1e-14
    )


def controls_by_definition(weights, visible, ids, *, following):
    """What `Controlled` holds of one head, pair by pair."""
    length = len(ids)
    pairs = {(i, j) for i in range(length) for j in range(1, i - 1) if visible[i, j]}
    chosen = {(i, j) for i, j in pairs if ids[j - int(following)] == ids[i]}
    targets, share, shuffled, others = torch.zeros(4, length, dtype=torch.float64)
    for i, j in chosen:
        targets[i] += 1
        share[i] += weights[i, j]
        alike = [k for q, k in pairs if q == i and (i - k).bit_length() == (i - j).bit_length()]
        shuffled[i] += weights[i, alike].mean()
        elsewhere = [q for q, k in pairs - chosen if k == j]
        others[j] += weights[elsewhere, j].mean() if elsewhere else weights[i, j]
    return targets, share, shuffled, others


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=23), st.integers(0, 99), st.booleans())
def test_controls_are_those_of_the_definition(ids, seed, windowed):
    generator = torch.Generator().manual_seed(seed)
    query, key = torch.randn(2, 2, len(ids), 5, generator=generator, dtype=torch.float64)
    mask = regard.causal() & regard.window(7) if windowed else regard.causal()
    pattern = regard.Pattern(query, key, mask=mask)
    (both,) = pattern.read(ControlledRepeats(torch.tensor(ids)))
    visible = mask.visible(len(ids), len(ids))
    for following, actual in zip((False, True), both, strict=True):
        for head, weights in enumerate(pattern.dense()):
            expected = controls_by_definition(weights, visible, ids, following=following)
            for mine, definition in zip(actual, expected, strict=True):
                # float64 sums of at most some hundred weights
                torch.testing.assert_close(mine[head], definition, rtol=0, atol=1e-13)


def assert_as_streamed(ids, query, key, **options):
    """Compare what the kernels find with what is streamed in float64, as the definition is."""
    readout = ControlledRepeats(ids)
    (by_kernels,) = regard.Pattern(query, key, **options).read(readout)
    (exact,) = regard.Pattern(query.double(), key.double(), **options).read(readout)
    for one, other in zip(by_kernels, exact, strict=True):
        for mine, definition in zip(one, other, strict=True):
            # Sums of up to some tens of weights, each of a score within some 1e-6 of the exact one.
            torch.testing.assert_close(mine, definition, rtol=1e-5, atol=2e-5, equal_nan=True)


# Rows of several heads in a block of the kernels, rows that fill none, and several blocks.
@pytest.mark.parametrize("length", [1, 2, 3, 23, 67, 131, 331])
@pytest.mark.parametrize("window", [None, 7, 97])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernels_find_the_same_controls(length, window, dtype, instructions):
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(9, (length,), generator=generator)
    query, key = (torch.randn(heads, length, 5, generator=generator).to(dtype) for heads in (4, 2))
    mask = regard.causal() & regard.window(window) if window else regard.causal()
    assert_as_streamed(ids, query, key, mask=mask)


@pytest.mark.parametrize("hidden", [-torch.inf, torch.finfo(torch.float32).min])
def test_what_a_bias_hides_is_no_pair(hidden):
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(5, (67,), generator=generator)
    x = torch.randn(3, 67, 5, generator=generator)
    seen = torch.rand(67, 67, generator=generator).tril() > 0.3
    bias = torch.zeros(67, 67).masked_fill(~(seen | torch.eye(67, dtype=torch.bool)), hidden)
    assert_as_streamed(ids, x, x, bias=bias)


def test_a_weight_that_is_nan_is_that_of_its_pairs_alone():
    x = torch.randn(2, 67, 5, generator=torch.Generator().manual_seed(5))
    x[0, 61] = torch.nan
    assert_as_streamed(torch.arange(67) % 5, x, x, mask=regard.causal())


def test_controls_of_many_blocks_add_up():
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(50, (1699,), generator=generator)  # more rows than one block holds
    x = torch.randn(2, 1699, 3, generator=generator)
    pattern = regard.Pattern(x, x, mask=regard.causal())
    whole = slice(0, 1699)
    marked = targets(ids, whole, whole, following=True).double()
    i, j = torch.arange(1699)[:, None], torch.arange(1699)
    others = ((j >= 1) & (j <= i - 2)).double() - marked
    weights = pattern.dense().double()
    mean = (weights * others).sum(-2) / others.sum(-2).clamp_min(1)
    actual = pattern.read(ControlledRepeats(ids))[0][1]
    # float32 weights, each within some 1e-7 of the same; a query's are about 0.02
    torch.testing.assert_close(actual.others, marked.sum(-2) * mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(actual.share, (weights * marked).sum(-1), rtol=1e-5, atol=1e-6)
    rows = torch.tensor([2, 850, 1698])
    expected = torch.zeros(2, len(rows), dtype=torch.float64)
    for place, row in enumerate(rows.tolist()):
        for first in (2**n for n in range(1, 11)):
            keys = torch.arange(max(1, row - 2 * first + 1), max(1, row - first + 1))
            if len(keys):
                share = marked[row, keys].mean()
                expected[:, place] += share * weights[:, row, keys].sum(-1)
    torch.testing.assert_close(actual.shuffled[:, rows], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("following", [False, True])
def test_many_blocks_add_up(following):
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(5, (1699,), generator=generator)  # more rows than one block holds
    x = torch.randn(2, 1699, 3, generator=generator)
    pattern = regard.Pattern(x, x, mask=regard.causal())
    rows = torch.tensor([0, 1, 2, 850, 1697, 1698])
    weights = pattern[:, rows]
    i, j = rows[:, None], torch.arange(1699)
    copy = ids.roll(1) if following else ids
    marked = (copy == ids[rows][:, None]) & (j >= 1) & (j <= i - 2)
    actual = pattern.read(Repeats(ids, following=following))[0][:, rows]
    # float32 weights; both sums take the same ones in another order
    torch.testing.assert_close(actual, (weights * marked).sum(-1), rtol=1e-5, atol=1e-6)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=13), st.booleans())
def test_which_queries_have_anything_to_count(ids, following):
    ids = torch.tensor(ids)
    whole = slice(0, len(ids))
    expected = targets(ids, whole, whole, following=following).any(-1)
    assert torch.equal(with_targets(ids, following=following), expected)
