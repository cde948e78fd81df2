"""Reducing mask tensors to row intervals."""

import contextlib
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.intercept import _mask_reduction
from regard.intercept._mask_reduction import MaskReducer
from regard.record import RecordError

B, H, L, S = 2, 3, 5, 7
LOWEST = torch.finfo(torch.float32).min


def shown(mask, queries=L, keys=S, leading=None):
    """What a mask lets through; of one that heads and sequences share, once."""
    if leading is not None:
        return mask.visible(queries, keys, leading)
    first, *others = mask.visible(queries, keys, (B, H)).flatten(0, 1)
    assert all(torch.equal(first, other) for other in others)
    return first


def reduced(mask, leading, queries, keys):
    return _mask_reduction.reduce_mask(mask, leading, queries, keys).mask


def is_interval(mask):
    return mask.allowed is None and mask.bias is None


def additive(visible, lowest):
    return torch.zeros(visible.shape).masked_fill(~visible, lowest)


def forms(visible):
    return [visible, additive(visible, -math.inf), additive(visible, LOWEST)]


ROW, J = torch.arange(L)[:, None], torch.arange(S)
SHAPES = {
    "everything": torch.ones(L, S, dtype=torch.bool),
    "causal": J <= ROW,
    "causal, last at last": J <= ROW + S - L,
    "window": (J <= ROW) & (J > ROW - 3),
    "both ways": (J <= ROW + 1) & (J > ROW - 2),
    "padding right": (J < 4) & (ROW >= 0),
    "padding left": (J >= 2) & (ROW >= 0),
    "padding both": (J >= 1) & (J < 4) & (ROW >= 0),
    "prefix": (J < 3) | (J <= ROW),
    "documents": torch.tensor([0, 0, 1, 1, 1])[:, None] == torch.tensor([0, 0, 0, 1, 1, 2, 2]),
    "own": J == ROW,
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("form", [0, 1, 2])
@pytest.mark.parametrize("leading", [(), (H,), (B, H), (2, B, H)])
def test_masks_whose_rows_are_contiguous_become_intervals(name, form, leading):
    visible = SHAPES[name]
    mask = reduced(forms(visible)[form], leading, L, S)
    assert is_interval(mask)
    assert torch.equal(shown(mask, leading=leading), visible.expand(*leading, L, S))


@pytest.mark.parametrize("form", [0, 1])
def test_fully_masked_rows(form):
    visible = SHAPES["causal"].clone()
    visible[2] = False
    mask = reduced(forms(visible)[form], (B, H), L, S)
    assert is_interval(mask)
    assert torch.equal(shown(mask), visible)


def test_rows_of_nothing_but_the_lowest_number_are_uniform():
    visible = SHAPES["causal"].clone()
    visible[2] = False
    mask = forms(visible)[2]
    mask[3] = -math.inf  # hides everything in earnest
    actual = _mask_reduction.reduce_mask(mask, (B, H), L, S)
    assert is_interval(actual.mask)
    assert actual.uniform.expand(B, H, L)[0, 0].tolist() == [False, False, True, False, False]
    visible[2], visible[3] = True, False
    assert torch.equal(shown(actual.mask), visible)


def test_softmax_of_rows_of_nothing_but_the_lowest_number_is_uniform():
    query, key = torch.randn(L, 4), torch.randn(S, 4)
    visible = SHAPES["causal"].clone()
    visible[2] = False
    mask = forms(visible)[2]
    with regard.record() as recording:
        F.scaled_dot_product_attention(query, key, key, attn_mask=mask)
    weights = torch.softmax(query @ key.mT / 2 + mask, -1)
    torch.testing.assert_close(weights[2], torch.full((S,), 1 / S))
    torch.testing.assert_close(recording[0].dense(), weights, rtol=0, atol=1e-6)


@pytest.mark.parametrize("form", [0, 1, 2])
def test_masks_with_gaps_stay_dense(form):
    visible = SHAPES["causal"].clone()
    visible[4, 2] = False
    mask = reduced(forms(visible)[form], (B, H), L, S)
    assert mask.allowed is not None
    assert mask.bias is None
    assert torch.equal(shown(mask), visible)


@pytest.mark.parametrize("number", [1e-30, -1.0, 5.0, LOWEST / 2, math.nan])
def test_biases_stay_as_they_are(number):
    bias = additive(SHAPES["causal"], -math.inf)
    bias[3, 1] = number
    mask = reduced(bias, (B, H), L, S)
    assert mask.allowed is None
    assert torch.equal(mask.bias.nan_to_num(7.0), bias.nan_to_num(7.0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_lowest_number_of_the_masks_own_dtype(dtype):
    lowest = torch.finfo(dtype).min
    mask = reduced(
        torch.zeros(L, S, dtype=dtype).masked_fill(~SHAPES["causal"], lowest), (B, H), L, S
    )
    assert is_interval(mask)
    assert torch.equal(shown(mask), SHAPES["causal"])


@pytest.mark.parametrize(
    "shape", [(S,), (1, S), (L, 1), (1, 1), (H, L, S), (H, 1, S), (B, 1, L, S), (B, H, 1, S), (1,)]
)
def test_shapes_that_broadcast(shape):
    generator = torch.Generator().manual_seed(1)
    start = torch.randint(0, 4, (*shape[:-1], 1), generator=generator)
    visible = (torch.arange(shape[-1]) >= start) if shape[-1] > 1 else start > 1
    for form in forms(visible)[:2]:
        mask = reduced(form, (B, H), L, S)
        assert is_interval(mask)
        assert torch.equal(shown(mask, leading=(B, H)), visible.expand(B, H, L, S))


def test_a_padding_mask_that_differs_between_sequences():
    keep = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]]).bool()
    visible = keep[:, None, None] & SHAPES["causal, last at last"]
    mask = reduced(visible, (B, H), L, S)
    assert is_interval(mask)
    assert torch.equal(shown(mask, leading=(B, H)), visible.expand(B, H, L, S))


def test_expanded_heads_are_reduced_once():
    visible = SHAPES["causal"].expand(B, H, L, S)
    assert visible.stride()[:2] == (0, 0)
    mask = reduced(visible, (B, H), L, S)
    (term,) = mask.terms
    assert term.start.numel() == term.stop.numel() == L
    assert torch.equal(shown(mask, leading=(B, H)), visible)
    # of a batch that differs, the heads alone
    batch = torch.stack([SHAPES["causal"], SHAPES["window"]])[:, None].expand(B, H, L, S)
    mask = reduced(batch, (B, H), L, S)
    assert mask.terms[0].start.numel() == B * L
    assert torch.equal(shown(mask, leading=(B, H)), batch)


@pytest.mark.parametrize(("queries", "keys"), [(0, S), (L, 0), (0, 0), (1, 1)])
def test_empty_masks(queries, keys):
    mask = reduced(torch.ones(queries, keys, dtype=torch.bool), (B, H), queries, keys)
    assert torch.equal(shown(mask, queries, keys), torch.ones(queries, keys, dtype=torch.bool))


@pytest.mark.parametrize(("first", "offset"), [(0, 0), (1, 1), (2, 2)])
def test_the_queries_sit_where_a_causal_mask_says(first, offset):
    assert reduced(ROW + first >= J, (B, H), L, S).offset == offset
    assert reduced(SHAPES["padding right"], (B, H), L, S).offset is None


def test_a_recording_detaches_the_mask():
    query, key = torch.randn(B, H, L, 4), torch.randn(B, H, S, 4)
    bias = torch.randn(L, S, requires_grad=True)
    with regard.record() as recording:
        context = F.scaled_dot_product_attention(query, key, key, bias)
    assert context.requires_grad
    assert not recording[0].problem.rows.bias.requires_grad
    assert not MaskReducer().reduce(bias, (B, H), L, S).mask.bias.requires_grad


@st.composite
def matrices(draw):
    """A mask of any shape that broadcasts, biased to contiguous rows, in any form."""
    queries, keys = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    shape = draw(
        st.sampled_from(
            [
                (queries, keys),
                (1, keys),
                (queries, 1),
                (H, queries, keys),
                (B, 1, queries, keys),
                (B, H, queries, keys),
                (B, H, 1, keys),
                (1, 1, 1, keys),
            ]
        )
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    if draw(st.booleans()):
        visible = torch.rand(shape, generator=generator) < draw(st.sampled_from([0.3, 0.8]))
    else:
        low, high = torch.randint(0, keys + 1, (2, *shape[:-1], 1), generator=generator)
        visible = (torch.arange(shape[-1]) >= low) & (torch.arange(shape[-1]) < high)
    form = draw(st.sampled_from(["bool", "-inf", "lowest", "both", "bias"]))
    if form == "bool":
        return queries, keys, visible
    bias = torch.zeros(shape)
    if form == "bias":
        bias = torch.randint(-4, 5, shape, generator=generator) / 4
    hidden = torch.full(shape, LOWEST if form == "lowest" else -math.inf)
    if form == "both":
        hidden[torch.rand(shape, generator=generator) < 0.5] = LOWEST
    return queries, keys, torch.where(visible, bias, hidden)


@given(matrices(), st.integers(0, 99))
def test_any_reduced_mask_has_the_same_weights(case, seed):
    queries, keys, matrix = case
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(B, H, queries, 4, generator=generator)
    key = torch.randn(B, H, keys, 4, generator=generator)
    full = matrix.expand(B, H, queries, keys)
    added = full
    if matrix.dtype == torch.bool:
        added = torch.zeros(full.shape).masked_fill(~full, -math.inf)
    seen = (added > -math.inf).any(-1)
    exact = torch.softmax(query @ key.mT / 2 + added, -1).nan_to_num(0)
    one = torch.eye(keys).expand(B, H, -1, -1)
    own = F.scaled_dot_product_attention(query, key, one, matrix)
    torch.testing.assert_close(own[seen], exact[seen], rtol=0, atol=1e-6)  # torch agrees
    with regard.record() as recording:
        F.scaled_dot_product_attention(query, key, key, matrix)
    weights = recording[0].dense()
    keys = weights.shape[-1]  # keys after the last query that none sees are left out
    torch.testing.assert_close(weights[seen], exact[seen][:, :keys], rtol=0, atol=1e-6)
    assert not weights[~seen].any()
    assert not exact[..., keys:].any()
    mask = reduced(matrix, (B, H), queries, exact.shape[-1])
    faint = added == LOWEST  # may count as hidden or as visible
    actual = shown(mask, queries, exact.shape[-1], (B, H))
    assert torch.equal(actual | faint, (added > -math.inf) | faint)


# What is remembered


def reduce(reducer, mask, leading=(B, H)):
    return reducer.reduce(mask, leading, L, S)


def test_a_mask_that_layers_share_is_reduced_once():
    reducer, mask = MaskReducer(), SHAPES["causal"].clone()
    first = reduce(reducer, mask)
    assert reduce(reducer, mask) is first
    assert reduce(reducer, mask.view(L, S)) is first, "the same memory, looked at anew"
    assert reduce(reducer, mask.clone()) is not first
    assert reduce(reducer, mask, (3, B, H)) is not first


def test_a_mask_that_broadcasts_over_queries_is_reduced_for_each_number_of_them():
    mask, reducer = torch.arange(S) < 5, MaskReducer()
    for queries in (5, 1, 3):
        rows = reducer.reduce(mask[None], (2, 3), queries, S).mask.resolve(
            (2, 3), queries, S, mask.device
        )
        assert rows.start.shape[-1] == queries


def test_masks_that_take_turns_are_all_remembered():
    reducer = MaskReducer()
    masks = [SHAPES["causal"].clone(), SHAPES["window"].clone(), SHAPES["prefix"].clone()]
    first = [reduce(reducer, mask) for mask in masks]
    for mask, result in zip(masks * 3, first * 3, strict=True):
        assert reduce(reducer, mask) is result


def test_a_mask_that_was_changed_in_place_is_another_mask():
    reducer, mask = MaskReducer(), SHAPES["causal"].clone()
    first = reduce(reducer, mask)
    mask[0, 1] = True
    second = reduce(reducer, mask)
    assert second is not first
    assert torch.equal(shown(second.mask), mask)
    assert torch.equal(shown(first.mask), SHAPES["causal"])
    mask.fill_(True)
    assert torch.equal(shown(reduce(reducer, mask).mask), mask)


def test_a_slice_of_the_same_memory_is_another_mask():
    reducer, large = MaskReducer(), torch.zeros(2, L, S, dtype=torch.bool)
    large[0], large[1] = SHAPES["causal"], SHAPES["prefix"]
    for part, name in zip(large, ("causal", "prefix"), strict=True):
        assert torch.equal(shown(reduce(reducer, part).mask), SHAPES[name])
    assert torch.equal(
        shown(reducer.reduce(large[0].mT, (B, H), S, L).mask, S, L), SHAPES["causal"].mT
    )


def test_memory_that_is_used_again_is_not_taken_for_the_old_mask():
    reducer = MaskReducer()
    for name in ("causal", "window", "prefix", "own") * 5:
        mask = SHAPES[name].clone()  # likely at the address of the one before
        assert torch.equal(shown(reduce(reducer, mask).mask), SHAPES[name])
        del mask


def test_masks_of_inference_mode_are_reduced_each_time():
    reducer = MaskReducer()
    with torch.inference_mode():
        mask = SHAPES["causal"].clone()
        reduce(reducer, mask)
        mask[0, 1] = True
        assert torch.equal(shown(reduce(reducer, mask).mask), mask)


def test_a_mask_changed_between_layers():
    query, key = torch.randn(2, B, H, L, 4)
    mask = torch.ones(L, L).tril().bool()
    with regard.record() as recording:
        F.scaled_dot_product_attention(query, key, key, attn_mask=mask)
        mask[0, 1] = True
        F.scaled_dot_product_attention(query, key, key, attn_mask=mask)
        mask.fill_(False)
    assert float(recording[0].dense()[0, 0, 0, 1]) == 0
    assert float(recording[1].dense()[0, 0, 0, 1]) > 0


@pytest.mark.parametrize("form", [0, 1])
@pytest.mark.parametrize("gap", [False, True])
def test_a_stored_dense_mask_does_not_change_with_the_model_s(form, gap):
    """A bias or a mask with gaps stays as it was when the call was made."""
    query, key = torch.randn(2, B, H, L, 4)
    visible = torch.ones(L, L).tril().bool()
    visible[3, 1] = not gap
    mask = forms(visible)[form]
    if form == 1:
        mask[2, 0] = 0.5
    with regard.record() as recording:
        F.scaled_dot_product_attention(query, key, key, attn_mask=mask)
    exact = recording[0].dense()
    with regard.record() as recording:
        F.scaled_dot_product_attention(query, key, key, attn_mask=mask)
        mask.zero_()
    with contextlib.suppress(RecordError):  # which says that it is lost
        torch.testing.assert_close(recording[0].dense(), exact, rtol=0, atol=1e-6)


# Memory


def size(pattern):
    problem, logsumexp = pattern.problem, pattern._logsumexp
    rows = problem.rows
    tensors = [problem.query, problem.key, rows.start, rows.stop, rows.positions]
    tensors += [t for t in (rows.allowed, rows.bias, logsumexp, problem.alibi) if t is not None]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


@pytest.mark.parametrize("form", [0, 1, 2])
def test_a_causal_matrix_is_not_stored(form):
    length, dim = 2048, 8
    visible = torch.ones(length, length, dtype=torch.bool).tril()
    mask = forms(visible)[form]
    query, key = torch.randn(2, 1, 2, length, dim)
    with regard.record() as recording:
        F.scaled_dot_product_attention(query, key, key, attn_mask=mask)
    pattern = recording[0]
    needed = 2 * query.numel() * 4 + 3 * length * 8  # query, key, and three integers a row
    assert size(pattern) <= needed
    row = torch.softmax(query[0, 0, 1000] @ key[0, 0, :1001].T * dim**-0.5, -1)
    torch.testing.assert_close(pattern[0, 0, 1000, :1001], row, rtol=0, atol=1e-6)
    assert not pattern[0, 0, 1000, 1001:].any()
