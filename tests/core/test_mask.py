"""Masks: what each means, how they combine, what they refuse."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.cases import KINDS, masks

import regard
from regard import causal, dense, documents, padding, window
from regard.masks import intervals, prefix
from regard.masks.bounds import AffineBounds

SIZES = st.sampled_from([1, 2, 3, 5, 7, 11])
INTERVALS = tuple(kind for kind in KINDS if kind not in {"dense", "hide"})


@given(st.data())
def test_visible_is_what_the_masks_mean(data):
    batch, heads, queries, keys = (data.draw(SIZES) for _ in range(4))
    make, expected, _ = data.draw(masks(batch, heads, queries, keys))
    assert torch.equal(make().visible(queries, keys, (batch, heads)), expected)


@given(st.data())
def test_intervals_are_the_same_mask(data):
    batch, heads, queries, keys = (data.draw(SIZES) for _ in range(4))
    make, expected, _ = data.draw(masks(batch, heads, queries, keys, INTERVALS))
    start, stop = make().intervals(queries, keys, (batch, heads))
    assert start.shape == stop.shape == (batch, heads, queries)
    assert bool((start >= 0).all() and (start <= stop).all() and (stop <= keys).all())
    key = torch.arange(keys)
    assert torch.equal((key >= start[..., None]) & (key < stop[..., None]), expected)


def shown(mask, queries, keys):
    return ["".join(".x"[int(seen)] for seen in row) for row in mask.visible(queries, keys)]


@pytest.mark.parametrize(
    ("mask", "rows"),
    [
        (causal(), ["xxx..", "xxxx.", "xxxxx"]),  # the last query sits at the last key
        (causal(offset=0), ["x....", "xx...", "xxx.."]),  # torch's is_causal
        (causal(offset=-1), [".....", "x....", "xx..."]),
        (causal(offset=torch.tensor(4)), ["xxxxx", "xxxxx", "xxxxx"]),
        (window(2), [".xx..", "..xx.", "...xx"]),
        (window(1, ahead=1), ["..xx.", "...xx", "....x"]),
        (causal() & window(1, ahead=1), ["..x..", "...x.", "....x"]),
        (prefix(4, offset=0), ["xxxx.", "xxxx.", "xxxx."]),
        (prefix(0), ["xxx..", "xxxx.", "xxxxx"]),
        (documents(torch.tensor([4, 4, 1, 1, 1])), ["..xxx", "..xxx", "..xxx"]),
        (documents(torch.tensor([4, 4, 1, 1, 1]), offset=1), ["xx...", "..xxx", "..xxx"]),
        (documents(torch.tensor([4, 4, 1, 1, 1]), offset=3), ["..xxx", "..xxx", "....."]),
        (padding(torch.tensor([0, 1, 1, 0, 0])), [".xx.."] * 3),
        (padding(torch.zeros(5, dtype=torch.bool)), ["....."] * 3),
        (dense(torch.tensor([[True], [False], [True]])), ["xxxxx", ".....", "xxxxx"]),
        (dense(torch.tensor([0.0, -torch.inf, 5.0, -9.0, 0.0])), ["x.xxx"] * 3),
        (intervals(torch.tensor([0, 4, 2]), torch.tensor([2, 1, 9])), ["xx...", ".....", "..xxx"]),
        (regard.Mask(), ["xxxxx"] * 3),
    ],
)
def test_each_mask_by_hand(mask, rows):
    assert shown(mask, 3, 5) == rows


def test_per_sequence_entries_align_from_the_left():
    keep = torch.tensor([[1, 1, 0], [0, 1, 1]])
    expected = keep.bool()[:, None, None].expand(2, 5, 4, 3)
    assert torch.equal(padding(keep).visible(4, 3, (2, 5)), expected)
    ids, lengths = torch.tensor([[0, 0, 1], [0, 1, 1]]), torch.tensor([2, 1])
    for mask in (documents(ids), prefix(lengths), causal(offset=lengths)):
        full = mask.visible(3, 3, (2, 5))
        for head in range(5):
            assert torch.equal(full[:, head], mask.visible(3, 3, (2,)))
        assert not torch.equal(full[0], full[1])


@pytest.mark.parametrize("lead", [(7, 2, 5), (7, 2, 1)])
def test_per_sequence_masks_of_more_than_one_batch_dimension(lead):
    keep = torch.rand(7, 2, 1, generator=torch.Generator().manual_seed(3)) < torch.tensor([2, 0.5])
    full = padding(keep).visible(3, 2, lead)
    assert torch.equal(full, keep[:, :, None, None].expand(*lead, 3, 2))


@given(st.data())
def test_intervals_are_the_mask(data):
    batch, heads, queries, keys = (data.draw(SIZES) for _ in range(4))
    shape = data.draw(
        st.sampled_from([(queries,), (batch, queries), (1, queries), (batch, heads, queries)])
    )
    seed = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
    start, stop = torch.randint(-2, keys + 3, (2, *shape), generator=seed)
    mask, key = intervals(start, stop), torch.arange(keys)
    expected = (key >= start[..., None]) & (key < stop[..., None])
    for _ in range(3 - len(shape)):
        expected = expected[:, None] if len(shape) == 2 else expected[None]
    expected = expected.expand(batch, heads, queries, keys)
    assert torch.equal(mask.visible(queries, keys, (batch, heads)), expected)
    # and with others, which it leaves where the queries sit
    both = mask & causal()
    inside = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    assert torch.equal(both.visible(queries, keys, (batch, heads)), expected & inside)


def test_intervals_come_back_as_given():
    mask = padding(torch.tensor([0, 1, 1, 1, 0])) & causal()
    start, stop = mask.intervals(3, 5, (2,))
    assert start.shape == (2, 3)
    again = intervals(start, stop)
    assert torch.equal(again.visible(3, 5, (2,)), mask.visible(3, 5, (2,)))
    query, key = torch.randn(2, 2, 5, 3, generator=torch.Generator().manual_seed(2))
    one, other = (regard.Pattern(query[:, :3], key, mask=m).dense() for m in (mask, again))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-7)


def test_intervals_hide_nothing_by_their_offset():
    start, stop = torch.tensor([0, 1, 2]), torch.tensor([2, 5, 3])
    placed = intervals(start, stop, offset=-1)
    assert torch.equal(placed.visible(3, 5), intervals(start, stop).visible(3, 5))
    weights = torch.eye(5)[[1, 3, 2]][None]
    distances = [
        regard.Pattern(weights, torch.eye(5)[None], scale=99.0, mask=m).distance()[0].tolist()
        for m in (placed, intervals(start, stop))
    ]
    # |position − key|, of weights that lie on one key but for e⁻⁹⁹
    assert distances == [pytest.approx([2.0, 3.0, 1.0]), pytest.approx([1.0, 0.0, 2.0])]


def test_dense_masks_broadcast_from_the_right():
    allowed = torch.rand(5, 1, 3, generator=torch.Generator().manual_seed(1)) < 0.5
    assert torch.equal(dense(allowed).visible(4, 3, (2, 5)), allowed.expand(2, 5, 4, 3))
    assert torch.equal(dense(allowed).visible(4, 3, (7, 2, 5)), allowed.expand(7, 2, 5, 4, 3))


def test_and_is_the_intersection():
    one, other = window(2, ahead=1), documents(torch.tensor([0, 0, 0, 1, 1]))
    both = one & other & dense(torch.tensor([True, True, False, True, True]))
    expected = one.visible(5, 5) & other.visible(5, 5)
    expected[:, 2] = False
    assert torch.equal(both.visible(5, 5), expected)


def test_and_adds_dense_biases():
    bias = torch.tensor([[1.0, 2.0], [3.0, -torch.inf]])
    joined = dense(bias) & dense(torch.tensor([10.0, 20.0])) & causal()
    x = torch.eye(2)
    steps = regard.explain(x, x, x, mask=joined, scale=0.0)
    expected = torch.tensor([[11.0, -torch.inf], [13.0, -torch.inf]])
    torch.testing.assert_close(steps.masked, expected)


def test_and_keeps_the_only_offset():
    assert (causal() & window(3, offset=2)).offset == 2
    assert (causal(offset=2) & window(3, offset=torch.tensor(2))).offset == 2


def test_repr_names_the_parts():
    mask = causal(offset=3) & window(4, ahead=1) & padding(torch.ones(2, 5, dtype=torch.bool))
    assert repr(mask) == "causal() & window(4, ahead=1) & padding((2, 5)) at offset 3"
    assert repr(window(4) & prefix(2)) == "window(4) & prefix(2)"
    assert repr(documents(torch.zeros(5, dtype=torch.int64))) == "documents((5,))"
    assert repr(dense(torch.zeros(2, 1, 3))) == "dense(torch.float32 (2, 1, 3))"
    assert repr(dense(torch.ones(3, dtype=torch.bool))) == "dense(bool (3,))"
    assert repr(regard.Mask()) == "everything"
    bounds = torch.zeros(2, 5, dtype=torch.int64)
    assert repr(intervals(bounds, bounds, offset=1)) == "intervals((2, 5)) at offset 1"


REFUSED = [
    (lambda: window(0), ValueError, "size ≥ 1.*size=0"),
    (lambda: window(3, ahead=-1), ValueError, "ahead ≥ 0.*ahead=-1"),
    (lambda: prefix(-2), ValueError, "length must not be negative, but is -2"),
    (lambda: prefix(torch.tensor([1.0])), TypeError, r"length must hold integers.*float32.*long"),
    (lambda: causal(offset=torch.tensor([0.5])), TypeError, "offset must hold integers.*float32"),
    (lambda: causal(offset=0.5), TypeError, "offset must be a whole number, but is 0.5"),
    (lambda: window(1.5), TypeError, "size must be a whole number, but is 1.5"),
    (lambda: window(True), TypeError, "size must be a whole number, but is True"),
    (lambda: window(2, ahead=0.5), TypeError, "ahead must be a whole number, but is 0.5"),
    (lambda: prefix(1.5), TypeError, "length must be a whole number, but is 1.5"),
    (lambda: causal() and window(2), TypeError, "combine masks with &, not with `and`"),
    (lambda: causal(offset=1) & window(2, offset=2), ValueError, "different offsets: 1, 2"),
    (lambda: documents(torch.tensor([0, 1, 0])), ValueError, "ids has a document in two pieces"),
    (lambda: documents(torch.tensor([0.0])), TypeError, "ids must hold integers.*float32"),
    (lambda: documents(torch.tensor(3)), ValueError, "ids needs an axis"),
    (lambda: documents([0, 0, 1]), TypeError, "ids must be a tensor, but is list"),
    (lambda: padding(torch.tensor([1, 0, 1])), ValueError, r"padding between tokens.*dense\(keep"),
    (lambda: padding(torch.tensor([5, 7])), ValueError, "numbers other than 0 and 1"),
    (lambda: padding(torch.tensor([1.0])), TypeError, "keep must hold integers"),
    (lambda: padding([True]), TypeError, "keep must be a tensor, but is list"),
    (
        lambda: dense(torch.tensor([1])),
        TypeError,
        r"mask must be bool or floating.*int64.*bool\(\)",
    ),
    (lambda: intervals(torch.tensor([0.0]), torch.tensor([1])), TypeError, "start must hold int"),
    (lambda: intervals(torch.tensor([0]), torch.tensor([True])), TypeError, "stop must hold int"),
    (lambda: intervals(torch.tensor(0), torch.tensor(1)), ValueError, "start needs an axis"),
    (lambda: intervals([0], [1]), TypeError, "start must be a tensor, but is list"),
    (
        lambda: intervals(torch.tensor([0, 1]), torch.tensor([1])),
        ValueError,
        r"start has shape \(2,\) and stop \(1,\)",
    ),
    (lambda: intervals(torch.tensor([0]), torch.tensor([1]), offset=0.5), TypeError, "offset must"),
    (lambda: dense([[True]]), TypeError, "mask must be a tensor, but is list"),
    (
        lambda: dense(torch.ones(2, 3)) & dense(torch.ones(2, 5)),
        ValueError,
        r"do not broadcast: \(2, 3\), \(2, 5\)",
    ),
    (lambda: causal() & 3, TypeError, "unsupported operand"),
]


@pytest.mark.parametrize(("make", "kind", "message"), REFUSED)
def test_a_mask_of_another_type_is_refused(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (documents(torch.zeros(5, dtype=torch.int64)), "ids covers 5 keys, but there are 7"),
        (intervals(*torch.zeros(2, 7).long()), "intervals covers 7 queries, but there are 5"),
        (intervals(*torch.zeros(2, 3, 5).long()), r"start has leading dimensions \(3,\)"),
        (padding(torch.ones(2, 5, dtype=torch.bool)), "keep covers 5 keys, but there are 7"),
        (padding(torch.ones(3, 7, dtype=torch.bool)), r"keep has leading dimensions \(3,\)"),
        (prefix(torch.tensor([1, 2, 3])), r"length has leading dimensions \(3,\).*\(2, 11\)"),
        (causal(offset=torch.tensor([1, 2, 3])), r"offset has leading dimensions \(3,\)"),
        (dense(torch.ones(3, 7)), r"mask has shape \(3, 7\), which does not broadcast"),
        (dense(torch.ones(3, 1, 1, 1, 1)), r"mask has shape \(3, 1, 1, 1, 1\)"),
    ],
)
def test_masks_that_do_not_fit_the_tensors_are_refused(mask, message):
    with pytest.raises(ValueError, match=message):
        mask.visible(5, 7, (2, 11))
    with pytest.raises(ValueError, match=message):
        regard.attention(*(torch.randn(2, 11, n, 3) for n in (5, 7, 7)), mask=mask)


@pytest.mark.parametrize("matrix", [torch.ones(3, dtype=torch.bool), torch.ones(3)])
def test_dense_masks_have_no_intervals(matrix):
    with pytest.raises(ValueError, match=r"dense and hide are not intervals; call visible\(\)"):
        (causal() & dense(matrix)).intervals(3, 3)


@pytest.mark.parametrize("queries", [0, 1, 5])
@pytest.mark.parametrize("first", [None, -3, 2, 9])
@pytest.mark.parametrize("stop", [None, -7, -2, 4, 9])
def test_the_last_stop_needs_no_table(queries, first, stop):
    line = AffineBounds(queries, 7, torch.device("cpu"), 2, first, stop)
    assert line.last_stop == max(line.stop.flatten().tolist(), default=0)


@pytest.mark.parametrize("keys", range(4))
@pytest.mark.parametrize("queries", range(4))
def test_bounds_that_hide_everything_need_no_table(queries, keys):
    ends = [None, *range(-4, 6)]
    for first in ends:
        for stop in ends:
            bounds = AffineBounds(queries, keys, torch.device("cpu"), 0, first, stop)
            assert bounds.is_empty is not bool((bounds.start < bounds.stop).any())
