"""`hide` and what adds to scores: their meaning beside other masks, their errors, their memory."""

import itertools
from array import array

import pytest
import torch
from support.cpu_paths import ON_CPU
from support.tolerances import normal

import regard
from regard import causal, dense, documents, padding, window
from regard.masks import hide, intervals, prefix
from regard.masks.bounds import AffineBounds
from regard.masks.hiding import add_to_scores

CPU = torch.device("cpu")


def rows_of(mask, queries, keys, leading=()):
    return mask.resolve(leading, queries, keys, CPU)


def shown(visible):
    return ["".join(".x"[int(seen)] for seen in row) for row in visible]


@pytest.mark.parametrize(
    ("mask", "rows"),
    [
        (hide(2), ["xx.xx"] * 3),
        (hide([]), ["xxxxx"] * 3),
        (hide(slice(3, 3)), ["xxxxx"] * 3),
        (hide(slice(-3, None)), ["xx..."] * 3),
        (hide(slice(None)), ["....."] * 3),
        (hide([-1, 1, 1, 2]), ["x..x."] * 3),
        (hide(slice(0, 9, 2)), [".x.x."] * 3),
        (hide(1, queries=-1), ["xxxxx", "xxxxx", "x.xxx"]),  # the last query sits at the last key
        (hide(1, queries=2), ["x.xxx", "xxxxx", "xxxxx"]),
        (hide(1, queries=[0, 9, 3]), ["xxxxx", "x.xxx", "xxxxx"]),
        (hide(1, queries=slice(3, None)), ["xxxxx", "x.xxx", "x.xxx"]),
        (hide(1, queries=slice(0, None, 2)), ["x.xxx", "xxxxx", "x.xxx"]),
        (hide(1, queries=slice(None, -9)), ["xxxxx"] * 3),
        (hide(0) & hide(slice(1, 3)), ["...xx"] * 3),
        (hide(slice(0, 3)) & hide(slice(2, 4)) & hide(4, queries=4), ["....x", "....x", "....."]),
        (causal() & hide(1), ["x.x..", "x.xx.", "x.xxx"]),
        (causal(offset=0) & hide(0), [".....", ".x...", ".xx.."]),
        (causal(offset=0) & hide(1, queries=1), ["x....", "x....", "xxx.."]),
        (causal() & window(3) & hide(2), ["xx...", ".x.x.", "...xx"]),
        (window(2) & hide(2, queries=3), [".xx..", "...x.", "...xx"]),
        (prefix(4, offset=0) & hide(slice(1, 3)), ["x..x.", "x..x.", "x..x."]),
        (documents(torch.tensor([4, 4, 1, 1, 1])) & hide(3), ["..x.x"] * 3),
        (padding(torch.tensor([0, 1, 1, 1, 0])) & hide(2), [".x.x."] * 3),
        (padding(torch.tensor([0, 1, 1, 1, 0])) & hide(slice(1, 4)), ["....."] * 3),
        (intervals(torch.tensor([0, 4, 2]), torch.tensor([3, 1, 5])) & hide(slice(1, 3)),
         ["x....", ".....", "...xx"]),
        (dense(torch.tensor([[True], [False], [True]])) & hide(0), [".xxxx", ".....", ".xxxx"]),
        (add_to_scores(-torch.inf, 4), ["xxxx."] * 3),
        (add_to_scores(0.5, slice(None)), ["xxxxx"] * 3),
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_hidden(mask, rows):
    assert shown(mask.visible(3, 5)) == rows


def test_an_end_before_the_first_key_is_the_first_key():
    """As of a list; with more queries than keys some sit before key 0."""
    expected = [".xx", ".xx", "xxx", "xxx", "xxx"]
    for stop in (0, -3, -4, -9):
        assert shown(hide(0, queries=slice(None, stop)).visible(5, 3)) == expected


def test_hide_takes_heads_by_index():
    visible = hide(1, heads=[0, -1]).visible(1, 3, (2, 4))
    assert [shown(visible[b, :, 0]) for b in range(2)] == [["x.x", "xxx", "xxx", "x.x"]] * 2
    assert shown(hide(1, heads=0).visible(2, 3)) == ["x.x"] * 2  # one head without an axis
    assert shown(hide(1, heads=slice(1, None)).visible(2, 3)) == ["xxx"] * 2


def test_hide_takes_queries_by_position_in_each_sequence():
    mask = causal(offset=torch.tensor([0, 2])) & hide(0, queries=2)
    visible = mask.visible(3, 5, (2,))
    assert shown(visible[0]) == ["x....", "xx...", ".xx.."]
    assert shown(visible[1]) == [".xx..", "xxxx.", "xxxxx"]


MASKS = {
    "amid": hide(slice(3, 9), queries=slice(12, None)) & hide(slice(5, 7)),
    "heads": hide(slice(0, 4), heads=0) & hide(slice(2, 19, 3), heads=[1, 2]),
    "rows hidden whole": hide(slice(None), queries=slice(3, 9, 2)) & hide(slice(2, 8), heads=1),
    "shifted": add_to_scores(1.5, slice(4, 11))
    & add_to_scores(-2.0, slice(9, 15), queries=[16, 18]),
    "hidden and shifted": add_to_scores(3.0, slice(2, 8), heads=3) & hide(slice(5, 12)) & hide(0),
}
BASES = {
    "": regard.Mask(),
    "causal": causal(),
    "window": causal() & window(7),
    "padding": causal() & padding(torch.stack([torch.arange(19) >= 4, torch.arange(19) < 15])),
    "documents": causal() & documents(torch.arange(19) // 6),
    "prefix": prefix(torch.tensor([5, 9])),
    "dense": causal() & dense(normal(4, 13, 19) > -1),
    "offsets": causal(offset=torch.tensor([0, 6])),
}
BOTH = list(itertools.product(BASES, MASKS))


def written_out(rows):
    """The same mask as a matrix: −∞ where a key is hidden, and what is added elsewhere."""
    everything = slice(0, rows.queries), slice(0, rows.keys)
    added = rows.bias_block(*everything, torch.float64)
    added = torch.zeros(1, dtype=torch.float64) if added is None else added
    whole = added.masked_fill(~rows.visible(*everything), -torch.inf)
    return whole.expand(*rows.heads, rows.queries, rows.keys)


@pytest.mark.each_once
@pytest.mark.parametrize("backend", ON_CPU)
@pytest.mark.parametrize(("base", "name"), BOTH)
def test_contexts_and_gradients_are_those_of_a_dense_mask(base, name, backend):
    mask = BASES[base] & MASKS[name]
    bias = written_out(rows_of(mask, 13, 19, (2, 4)))
    tensors = [normal(2, heads, n, 8, seed=heads + n) for heads, n in ((4, 13), (2, 19), (2, 19))]
    weight = normal(2, 4, 13, 8, seed=5)

    def results(mask, dtype, backend):
        given = [t.to(dtype).requires_grad_() for t in tensors]
        context = regard.attention(*given, mask=mask, backend=backend)
        return context, *torch.autograd.grad((context * weight.to(dtype)).sum(), given)

    expected = results(dense(bias), torch.float64, "eager")
    for result, exact in zip(results(mask, torch.float32, backend), expected, strict=True):
        torch.testing.assert_close(result.double(), exact, rtol=1e-5, atol=1e-5)
    assert not bool(expected[0][~(bias > -torch.inf).any(-1)].any())


@pytest.mark.parametrize(("base", "name"), BOTH)
def test_rows_start_and_stop_at_visible_keys(base, name):
    rows = rows_of(BASES[base] & MASKS[name], 13, 19, (2, 4))
    seen = rows.visible(slice(0, 13), slice(0, 19))
    if rows.allowed is None:
        fully_masked = ~seen.any(-1)
        assert torch.equal((rows.start == rows.stop).expand(fully_masked.shape), fully_masked)
    spans = rows.spans
    if spans is not None:
        touched = spans.start < spans.stop
        assert bool(touched.flatten(1).any(1).all())
        inside = (spans.start >= rows.start) & (spans.stop <= rows.stop)
        assert bool(inside[touched].all())
        if rows.allowed is None:
            at_an_end = (spans.start == rows.start) | (spans.stop == rows.stop)
            hidden = spans.added.isneginf()[:, None, None, None] & touched
            assert not bool((at_an_end & hidden).any())


@pytest.mark.each_once
@pytest.mark.parametrize(("base", "name"), BOTH)
def test_parts_of_rows_mean_the_same(base, name):
    rows = rows_of(BASES[base] & MASKS[name], 13, 19, (2, 4))
    whole = written_out(rows)
    index = torch.tensor([11, 3, 3])
    parts = {
        "crop": (rows.crop(slice(4, 11), slice(2, 9)), whole[..., 4:11, 2:9]),
        "take": (rows.take(index), whole[..., index, :]),
        "entry": (rows.entry(1), whole[1:]),
        "select": (
            rows.select(torch.tensor([1, 0]), torch.tensor([3, 0])),
            whole[[1, 0], [3, 0]][:, None],
        ),
        "to": (rows.to(lambda tensor: tensor.clone(), CPU), whole),
    }
    for what, (part, expected) in parts.items():
        assert torch.equal(written_out(part), expected), what
        if part.allowed is None:
            fully_masked = (expected == -torch.inf).all(-1)
            ends_meet = (part.start == part.stop).expand(fully_masked.shape)
            assert torch.equal(ends_meet, fully_masked), what


def test_masks_are_intervals_where_possible():
    rows = rows_of(causal() & hide(slice(2, 4), queries=slice(7, None)), 9, 9)
    assert isinstance(rows.bounds, AffineBounds)
    assert rows.spans is not None
    rows = rows_of(hide(slice(0, 2)) & hide(slice(2, 4)) & hide(slice(7, 20)), 9, 9)
    assert rows.is_interval
    assert (rows.start.unique().tolist(), rows.stop.unique().tolist()) == ([4], [7])
    assert rows_of(causal() & add_to_scores(2.0, 8, queries=slice(0, 8)), 9, 9).is_interval
    assert rows_of(causal() & hide(slice(3, 3)), 9, 9).is_interval
    assert rows_of(hide(1, heads=0), 3, 3, (2,)).select(*torch.tensor([[0], [1]])).is_interval


def test_masks_with_spans_say_so():
    mask = causal() & hide(slice(3, 9), queries=-1, heads=[0, 1]) & add_to_scores(0.5, 7)
    assert repr(mask) == (
        "causal() & hide(slice(3, 9), queries=-1, heads=[0, 1]) & add_to_scores(0.5, 7)"
    )
    assert mask.affine is None
    with pytest.raises(ValueError, match=r"dense and hide are not intervals; call visible\(\)"):
        mask.intervals(9, 9)


@pytest.mark.parametrize("keys", [(1, 2), range(1, 3), bytes([1, 2]), array("i", [1, 2])])
def test_any_sequence_of_integers_is_an_index(keys):
    assert torch.equal(hide(keys).visible(3, 5), hide([1, 2]).visible(3, 5))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: hide(True), TypeError, "keys must be an integer, a slice or integers, but is Tr"),
        (lambda: hide("a"), TypeError, "keys must be an integer, a slice or integers, but is 'a'"),
        (lambda: hide(torch.tensor([1, 2])), TypeError, r"of shape \(2,\); give its tolist\(\)$"),
        (lambda: hide([1, 2.0]), TypeError, r"keys must be .* but is \[1, 2.0\]"),
        (lambda: hide(None), TypeError, r"for all keys pass slice\(None\)"),
        (lambda: hide(slice(0.5)), TypeError, "keys=slice.* must be a slice of integers"),
        (lambda: hide(slice(9, 0, -1)), ValueError, "keys=slice.* must go forward"),
        (lambda: hide(1, queries=1.5), TypeError, "queries must be an integer, a slice or"),
        (lambda: hide(1, heads=[False]), TypeError, "heads must be an integer, a slice or"),
        (lambda: add_to_scores("1", 0), TypeError, "by must be a number, but is str"),
        (lambda: add_to_scores(True, 0), TypeError, "by must be a number, but is bool"),
        (lambda: add_to_scores(torch.nan, 0), ValueError, "by must be .*, but is nan"),
        (lambda: add_to_scores(torch.inf, 0), ValueError, "by must be .*, but is inf"),
        (lambda: add_to_scores(-1e39, 0), ValueError, "by must be .*, but is -1e[+]39"),
        (lambda: hide(9).visible(3, 9), IndexError, "keys asks for 9, but there are only 0 to 8"),
        (lambda: hide([0, -10]).visible(3, 9), IndexError, "keys asks for -10, but there ar"),
        (lambda: hide(0).visible(3, 0), IndexError, "keys asks for 0, but"),
        (lambda: hide(0, heads=4).visible(3, 9, (2, 4)), IndexError, "heads asks for 4, but the"),
        (lambda: hide(0, heads=1).visible(3, 9), IndexError, "heads asks for 1, but there are on"),
    ],
)  # fmt: skip
def test_invalid_indices_and_numbers_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_numbers_are_added_after_the_softcap():
    query, key = normal(3, 5, 4).double(), normal(3, 7, 4, seed=1).double()
    mask = add_to_scores(0.5, slice(1, 4)) & add_to_scores(0.25, 3, queries=-1)
    steps = regard.explain(query, key, key, mask=mask, softcap=2.0)
    added = torch.tensor([0, 0.5, 0.5, 0.5, 0, 0, 0]).double().repeat(3, 5, 1)
    added[:, -1, 3] += 0.25
    torch.testing.assert_close(steps.biased - steps.softcapped, added)


HIDDEN = causal() & hide(slice(None), queries=slice(0, 4), heads=[0, 2]) & hide(slice(2, 4))


def inputs():
    return [normal(2, 3, 9, 8, seed=seed, dtype=torch.float32) for seed in range(3)]


class Attention(torch.nn.Module):
    def forward(self, query, key, value):
        return regard.attention_with_pattern(query, key, value, mask=HIDDEN)[0]


def test_exports_and_transforms_hide_the_same():
    tensors, exact = inputs(), regard.attention(*inputs(), mask=HIDDEN)
    exported = torch.export.export(Attention(), tuple(tensors)).module()
    torch.testing.assert_close(exported(*tensors), exact)
    mapped = torch.func.vmap(lambda query: Attention()(query, *tensors[1:]))
    torch.testing.assert_close(mapped(tensors[0].expand(3, -1, -1, -1, -1))[1], exact)


def test_shapes_are_known_without_values():
    tensors = [tensor.to("meta") for tensor in inputs()]
    assert regard.attention(*tensors, mask=HIDDEN).shape == (2, 3, 9, 8)
    assert HIDDEN.resolve((2, 3), 9, 9, torch.device("meta")).start.is_meta
