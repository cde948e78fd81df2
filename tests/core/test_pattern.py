"""`Pattern` as a matrix: indexing, products, and `verify`."""

import copy
import math
import operator
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.cases import cases
from support.cpu_paths import way

import regard
from regard.pattern import reading

SHAPE = (2, 6, 5, 7)


def pattern(shape=SHAPE, dtype=torch.float32, **options):
    *lead, queries, keys = shape
    query, key = (torch.randn(*lead, count, 4, dtype=dtype) for count in (queries, keys))
    return regard.Pattern(query, key, **{"mask": regard.causal(), **options})


LAZY = [
    (),
    0,
    -1,
    slice(None),
    slice(1, None),
    (0, 3),
    (-1, -2),
    (slice(None), 2),
    (1, slice(None, None, 2)),
    (slice(0, 0),),
    (Ellipsis,),
    (0, Ellipsis),
    (0, Ellipsis, slice(None), slice(None)),
    (0, 3, slice(None), slice(None)),
]
EXACT = [
    (0, 3, 2),
    (0, 3, 2, 4),
    (0, 3, -1, -7),
    (0, 3, slice(1, 3)),
    (0, 3, slice(1, 3), slice(None)),
    (0, 3, slice(None), 2),
    (0, 3, slice(None), slice(2, 5)),
    (0, 3, slice(None, None, 2), slice(1, None, 3)),
    (Ellipsis, 0),
    (Ellipsis, 1, slice(None)),
    (Ellipsis, slice(0, 2), slice(3, None)),
    (slice(None), 1, 2),
    (1, slice(2, 5), slice(1, 2), 3),
    (slice(None), slice(None), 2, 4),
    (0, 3, [0, 2, 2]),
    (0, 3, [-1], slice(None)),
    (0, 3, slice(None), [6, 0]),
    (0, 3, 1, [6, 0]),
    (0, 3, [], slice(None)),
    (0, 3, slice(None), []),
    (slice(None), slice(None), [4, 1], 2),
    (0, 3, torch.tensor([3, 1])),
    (0, 3, torch.tensor(2), slice(None)),
    (0, 3, slice(None), torch.tensor([0, 1, 6], dtype=torch.int32)),
    (0, 3, torch.tensor([True, False, False, True, True])),
    (0, 3, [True, False, False, True, True], slice(None)),
    (0, 3, slice(2, 2)),
    (0, 3, slice(100, 200), slice(None)),
]


@pytest.mark.each_once
@pytest.mark.parametrize("block", [None, 9, 2**20])
@pytest.mark.parametrize("index", LAZY, ids=str)
def test_batch_and_heads_alone_give_a_smaller_pattern(index, block):
    with way(block):
        whole = pattern()
        part, expected = whole[index], whole.dense()[index]
        assert isinstance(part, regard.Pattern)
        assert part.shape == expected.shape
        assert part.ndim == expected.ndim
        torch.testing.assert_close(part.dense(), expected)
        torch.testing.assert_close(part.entropy(), torch.special.entr(expected).sum(-1))
        error = part.verify()
        assert error < 1e-6 if part.shape.numel() else math.isnan(error)
        if part.ndim > 2 and part.shape[0]:
            torch.testing.assert_close(part[0].dense(), expected[0])


@pytest.mark.each_once
@pytest.mark.parametrize("block", [None, 2**20])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("index", EXACT, ids=str)
def test_queries_and_keys_give_exact_weights(index, known, block):
    with way(block):
        whole = pattern()
        expected = whole.dense()[index]
        whole = regard.Pattern.of(whole._problem, whole.logsumexp if known else None)
        part = whole[index]
    assert isinstance(part, torch.Tensor)
    assert part.shape == expected.shape
    torch.testing.assert_close(part, expected)


@pytest.mark.parametrize("shape", [(5, 7), (3, 5, 7), (2, 1, 3, 5, 7)])
def test_any_number_of_leading_dimensions(shape):
    whole = pattern(shape)
    dense = whole.dense()
    assert dense.shape == whole.shape == shape
    for index in ((..., 2), (..., slice(1, 3), slice(None)), (..., [0, 4], slice(2, 5))):
        torch.testing.assert_close(whole[index], dense[index])
    assert len(whole) == shape[0]
    assert len(list(whole)) == shape[0]
    one = whole[0]
    assert isinstance(one, torch.Tensor if len(shape) == 2 else regard.Pattern)


@given(cases(), st.sampled_from([None, 20, 100, 2**20]))
def test_parts_of_any_problem(case, block):
    batch, heads, queries, keys = case.visible.shape
    with way(block):
        whole = regard.Pattern(case.query, case.key, **case.options)
        tolerance = {"rtol": 0, "atol": 8 * case.rounding}
        exact = case.exact.weights
        rows = (batch - 1, heads - 1, [queries - 1, 0])
        torch.testing.assert_close(whole[rows].double(), exact[rows], **tolerance)
        columns = (..., slice(keys // 2, None))
        torch.testing.assert_close(whole[columns].double(), exact[columns], **tolerance)
        head = (slice(None), heads // 2)
        torch.testing.assert_close(whole[head].dense().double(), exact[head], **tolerance)
        assert whole.verify() <= tolerance["atol"]


@pytest.mark.parametrize(
    ("index", "kind", "message"),
    [
        ((0, 0, 0, 0, 0), IndexError, "too many entries for a pattern of 4 axes"),
        ((Ellipsis, 0, Ellipsis), IndexError, "too many entries"),
        (2, IndexError, "out of"),
        ((0, 6), IndexError, "out of"),
        ((0, 0, 5), IndexError, "out of"),
        ((0, 0, 0, -8), IndexError, "out of"),
        ((0, 0, [0, 5]), IndexError, "out of"),
        ((0, 0, torch.ones(4, dtype=torch.bool)), IndexError, "mask"),
        (
            [0, 1],
            TypeError,
            r"batch and heads are indexed by an integer or a slice, but got \[0, 1",
        ),
        ((0, torch.tensor([1])), TypeError, "batch and heads are indexed by"),
        ((0, 0, None), TypeError, "queries and keys are indexed by .* but got None"),
        ((0, 0, True), TypeError, "queries and keys are indexed by .* but got True"),
        ((0, 0, "a"), TypeError, "queries and keys are indexed by .* but got 'a'"),
        ((0, 0, [0.5]), TypeError, "queries and keys are indexed by"),
        ((0, 0, torch.tensor([0.5])), TypeError, "must hold integers or booleans.*float32"),
        ((0, 0, torch.tensor([[0]])), TypeError, "queries and keys are indexed by"),
        ((0, 0, [0], [1]), TypeError, "only one of queries and keys may be picked by a list"),
        ((0, 0, slice(None, None, -1)), ValueError, "step must be greater than zero"),
    ],
    ids=str,
)
def test_invalid_indices_are_refused(index, kind, message):
    with pytest.raises(kind, match=message):
        pattern()[index]


def test_too_large_results_are_refused():
    long = pattern((2, 40_000, 30_000))  # 8.9 GiB of weights, of which nothing is computed
    message = "these weights take 8.9 GiB, above the limit of 1.0 GiB; take fewer rows"
    with pytest.raises(ValueError, match=message):
        long.dense()
    with pytest.raises(ValueError, match=r"these weights take 4.5 GiB.*dense\(limit=None\)"):
        long[0, :40_000]
    assert long[0, 39_999].shape == (30_000,)


def test_an_array_of_numpy_holds_all_weights_within_the_limit():
    whole = pattern()
    array = np.asarray(whole)
    assert array.dtype == np.float32
    assert torch.equal(torch.from_numpy(array), whole.dense())
    assert np.asarray(whole.mean(), dtype=np.float64).shape == (2, 5, 7)
    assert np.stack([*whole]).shape == whole.shape
    with pytest.raises(
        ValueError, match=r"computes its weights, so that an array .* always a copy"
    ):
        np.asarray(whole, copy=False)
    with pytest.raises(ValueError, match=r"these weights take 8.9 GiB, above the limit of 1.0 GiB"):
        np.asarray(pattern((2, 40_000, 30_000)))


# What other libraries do with an attention: BertViz the first two and the last.
USES = {
    "squeeze": (lambda one: one.squeeze(0), r"Pattern has no .*'squeeze'.*: pattern\[0\] takes"),
    "size": (lambda one: one.size(-1), r"Pattern has no .*'size'.*: its sizes are pattern\.shape"),
    "tolist": (lambda one: one.tolist(), r"Pattern has no .*'tolist'.*: write .* with dense\(\)"),
    "stack": (lambda one: torch.stack([one, one]), r"torch\.stack takes .* recording\.dense\(\)"),
}


@pytest.mark.parametrize("use", USES)
def test_what_only_a_tensor_has_says_what_to_do_instead(use):
    call, message = USES[use]
    for one in (pattern(), pattern().weighted(key=torch.randn(7)), pattern().mean()):
        with pytest.raises((AttributeError, TypeError), match=message):
            call(one)
    with pytest.raises(AttributeError, match=r"a Pattern has no attribute 'entropie'$"):
        _ = pattern().entropie


def test_dense_takes_a_limit():
    small = pattern()
    size = 2 * 6 * 5 * 7 * 4
    with pytest.raises(ValueError, match="above the limit"):
        small.dense(limit=size - 1)
    assert torch.equal(small.dense(limit=size), small.dense(limit=None))


def test_repr_and_properties():
    whole = pattern()
    assert repr(whole) == "Pattern(2 × 6 × 5 queries × 7 keys, float32, cpu)"
    assert repr(pattern((5, 7))) == "Pattern(5 queries × 7 keys, float32, cpu)"
    assert (whole.ndim, len(whole), whole.dtype) == (4, 2, torch.float32)
    assert whole.device == torch.device("cpu")
    double = regard.Pattern(torch.randn(5, 4).double(), torch.randn(7, 4).double())
    half = regard.Pattern(torch.randn(5, 4).half(), torch.randn(7, 4).half())
    assert (double.dtype, half.dtype) == (torch.float64, torch.float32)


@pytest.mark.parametrize("block", [None, 2**20])
def test_the_log_sum_exp_is_computed_once(block, monkeypatch):
    passes = []
    for module, name in ((reading, "stream"), (reading.native, "read")):
        function = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *args, f=function: passes.append(args[-2]) or f(*args)
        )
    with way(block):
        whole = pattern()
        whole.entropy()
        whole.received()
    assert passes[0] is None
    assert passes[1] is not None
    assert len(passes) == 2


def test_a_log_sum_exp_that_is_given_is_used():
    query, key = torch.randn(5, 4), torch.randn(7, 4)
    right = regard.Pattern(query, key)
    shifted = regard.Pattern(query, key, logsumexp=right.logsumexp + 1)
    torch.testing.assert_close(shifted.dense(), right.dense() / torch.e)
    with pytest.raises(ValueError, match=r"logsumexp has shape \(4,\), but the query .* \(5,\)"):
        regard.Pattern(query, key, logsumexp=torch.zeros(4))


PLACES = {
    "query": lambda query, key, bias: query.mul_(3),
    "key": lambda query, key, bias: key[0, 0, 5].add_(2),
    "mask": lambda query, key, bias: bias.mul_(-1),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("made", ["by itself", "with a context"])
def test_a_pattern_follows_changes_of_its_tensors(made, place):
    query, key, bias = torch.randn(2, 3, 13, 7), torch.randn(2, 3, 17, 7), torch.randn(13, 17)
    options = {"mask": regard.causal() & regard.dense(bias)}
    if made == "by itself":
        pattern = regard.Pattern(query, key, **options)
        pattern.entropy()
    else:
        pattern = regard.attention_with_pattern(query, key, key, **options)[1]
    part = pattern[1, 2]
    PLACES[place](query, key, bias)
    options = {"mask": regard.causal() & regard.dense(bias)}
    expected = regard.Pattern(query, key, **options).dense()
    torch.testing.assert_close(pattern.dense(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(part.dense(), expected[1, 2], rtol=1e-5, atol=1e-6)
    assert pattern.verify() < 1e-5


@pytest.mark.parametrize("made", ["a copy", "a deep copy", "loaded"])
def test_copies_have_the_weights_of_the_original(made):
    query, key = torch.randn(13, 7), torch.randn(17, 7)
    query.mul_(2)
    whole = regard.Pattern(query, key)
    for pattern in (
        whole,
        whole.crop(keys=(3, 9)),
        regard.Pattern(query, key, logsumexp=whole.logsumexp),
    ):
        make = {
            "a copy": copy.copy,
            "a deep copy": copy.deepcopy,
            "loaded": lambda p: pickle.loads(pickle.dumps(p)),
        }[made]
        other = make(pattern)
        assert other.has_logsumexp
        assert torch.equal(other.dense(), pattern.dense())
    shallow = copy.copy(whole)
    key.mul_(3)
    expected = regard.Pattern(query, key).dense()
    for pattern in (whole, shallow):
        torch.testing.assert_close(pattern.dense(), expected, rtol=1e-5, atol=1e-6)


def test_a_graph_leaves_log_sum_exps_as_they_are(monkeypatch):
    """There tensors have no count of writes."""
    query, key = torch.randn(2, 13, 7), torch.randn(2, 17, 7)
    before = regard.Pattern(query, key)
    known = regard.Pattern(query, key, logsumexp=before.logsumexp)
    with monkeypatch.context() as graph:
        graph.setattr(torch.compiler, "is_compiling", lambda: True)
        inside = regard.Pattern(query, key, logsumexp=before.logsumexp)
        assert known.has_logsumexp
    assert torch.equal(inside.dense(), known.dense())
    key.mul_(3)
    for pattern in (inside, known):
        with pytest.raises(ValueError, match="were written to after the pattern was made"):
            pattern.dense()


def test_log_sum_exps_that_were_given_do_not_change_with_the_tensors():
    query, key = torch.randn(13, 7), torch.randn(17, 7)
    whole = regard.Pattern(query, key)
    known = regard.Pattern(query, key, logsumexp=whole.logsumexp)
    part = whole.crop(keys=(3, 9))
    key.mul_(3)
    whole.dense()
    for pattern in (known, part):
        for _ in range(2):
            with pytest.raises(ValueError, match="were written to after the pattern was made"):
                pattern.entropy()


# As a linear operator


@given(cases(), st.sampled_from([None, 20, 100, 2**20]), st.data())
def test_products_from_both_sides(case, block, data):
    batch, heads, queries, keys = case.visible.shape
    lead = data.draw(st.sampled_from([(), (heads,), (1, heads), (batch, 1), (batch, heads)]))
    source = torch.Generator().manual_seed(1)
    x = torch.randn(*lead, keys, 3, generator=source)
    y = torch.randn(*lead, 2, queries, generator=source)
    with way(block):
        whole = regard.Pattern(case.query, case.key, **case.options)
        right, left = whole @ x, y @ whole
        vector_right, vector_left = whole @ x[..., 0] if not lead else None, None
        if not lead:
            vector_left = y[0] @ whole
        assert torch.equal(torch.matmul(y, whole), left)
        assert torch.equal(torch.matmul(other=whole, input=y), left)
    assert right.dtype == left.dtype == case.exact_dtype
    exact = case.exact.weights
    # Sums of at most 13 products of a weight and a number below 4.
    tolerance = {"rtol": 0, "atol": 100 * case.rounding}
    torch.testing.assert_close(right.double(), exact @ x.double(), **tolerance)
    torch.testing.assert_close(left.double(), y.double() @ exact, **tolerance)
    if not lead:
        torch.testing.assert_close(vector_right.double(), (exact @ x.double())[..., 0], **tolerance)
        torch.testing.assert_close(
            vector_left.double(), (y.double() @ exact)[..., 0, :], **tolerance
        )


def test_context_is_pattern_at_value():
    query, key, value = torch.randn(2, 6, 5, 4), torch.randn(2, 6, 7, 4), torch.randn(2, 6, 7, 3)
    context, weights = regard.attention_with_pattern(query, key, value)
    torch.testing.assert_close(weights @ value, context)
    torch.testing.assert_close(torch.ones(5) @ weights, weights.received())


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("shape", [(), (3,), (3, 3), (2, 2, 7, 7), (5, 2, 6, 7, 7)])
def test_operands_that_do_not_fit_are_refused(shape, side):
    whole, operand = pattern(), torch.zeros(shape)
    left, right = (whole, operand) if side == "right" else (operand, whole)
    with pytest.raises(ValueError, match=r"does not fit Pattern.* it needs [LS]=[57]"):
        operator.matmul(left, right)


def test_operands_must_be_tensors():
    whole = pattern()
    for left, right in ((whole, 3), (3, whole), (whole, whole), ([1.0], whole)):
        with pytest.raises(TypeError):
            operator.matmul(left, right)


def test_products_refuse_an_out_argument():
    with pytest.raises(TypeError, match=r"^out must be None .* but is Tensor; take the product"):
        torch.matmul(pattern(), torch.ones(7, 2), out=torch.empty(0))


CALLS = {
    "torch.stack": lambda pattern: torch.stack([pattern, pattern]),
    "torch.cat": lambda pattern: torch.cat([pattern, pattern.mean()]),
    "torch.mean": torch.mean,
    "torch.softmax": lambda pattern: torch.softmax(pattern, dim=-1),
    "torch.nn.functional.relu": torch.nn.functional.relu,
    "torch.functional.einsum": lambda pattern: torch.einsum("bhij->bij", pattern),
    # With a tensor beside the pattern, which torch's functions in Python ask too.
    "torch.functional.tensordot": lambda pattern: torch.tensordot(pattern, torch.ones(7, 2), 1),
    "torch.nn.functional.mse_loss": lambda p: torch.nn.functional.mse_loss(torch.ones(7), p),
}


@pytest.mark.parametrize("name", CALLS)
def test_torch_functions_are_refused_with_the_cure(name):
    error = rf"^{name} takes tensors, but a Pattern is not.* with dense\(\).*recording\.dense\(\)$"
    with pytest.raises(TypeError, match=error):
        CALLS[name](pattern())


# Whether it is right


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_verify_gives_the_worst_error(dtype):
    query, key = torch.randn(3, 300, 8).to(dtype), torch.randn(3, 331, 8).to(dtype)
    value = torch.randn(3, 331, 8).to(dtype)
    _, fused = regard.attention_with_pattern(query, key, value, mask=regard.causal())
    for weights in (fused, regard.Pattern(query, key, mask=regard.causal())):
        worst = weights.verify()
        # A few roundings of a weight, whose scores are below 10.
        assert 0 < worst < 20 * torch.finfo(weights.dtype).eps
        exact = regard.explain(*(t.double() for t in (query, key, value)), mask=regard.causal())
        every_row = float((weights.dense().double() - exact.weights).abs().max())
        assert weights.verify(rows=300) == pytest.approx(every_row, rel=1e-3)


@pytest.mark.parametrize(
    ("spoil", "least"),
    [(lambda t: t + 0.1, 0.02), (lambda t: t * torch.nan, torch.inf), (lambda t: t.roll(1), 0.02)],
)
def test_verify_detects_a_wrong_log_sum_exp(spoil, least):
    query, key = torch.randn(2, 61, 8), torch.randn(2, 61, 8)
    right = regard.Pattern(query, key, mask=regard.causal())
    wrong = regard.Pattern(query, key, mask=regard.causal(), logsumexp=spoil(right.logsumexp))
    assert right.verify() < 1e-6
    assert wrong.verify() >= least


def test_verify_detects_one_wrong_row_of_one_head():
    query, key = torch.randn(3, 61, 8), torch.randn(3, 61, 8)
    logsumexp = regard.Pattern(query, key).logsumexp.clone()
    logsumexp[2, -1] += 0.5
    wrong = regard.Pattern(query, key, logsumexp=logsumexp)
    assert wrong.verify(rows=2) > 1e-3  # the first row and the last
    assert wrong[:2].verify() < 1e-6


@pytest.mark.parametrize("mask", [None, regard.causal(), regard.causal(offset=-2)], ids=str)
def test_verify_is_nan_if_nothing_can_be_compared(mask):
    """Of weights that are NaN by definition, none is right or wrong; hidden ones are 0 in both."""
    query, key = torch.randn(2, 2, 7, 5).unbind()
    query[0] = torch.nan  # the whole first head
    query[1, 4] = torch.nan
    pattern = regard.Pattern(query, key, mask=mask)
    assert pattern[0].dense().isnan().any()
    assert math.isnan(pattern[:1].verify())
    assert math.isnan(pattern[1:].at(torch.tensor([4])).verify())
    assert 0 < pattern[1:].verify() < 1e-6  # of the other rows
    assert pattern.verify() == pattern[1:].verify()
    wrong = regard.Pattern(query, key, mask=mask, logsumexp=torch.zeros(2, 7))
    assert wrong.verify() > 0.01


def test_verify_needs_a_row():
    with pytest.raises(ValueError, match="rows must be at least 1, but is 0"):
        pattern().verify(rows=0)


@pytest.mark.parametrize(
    "mask",
    [
        regard.causal(),
        regard.window(7) & regard.causal(),
        regard.window(3, ahead=5, offset=-2),
        regard.padding(torch.arange(31) > 3) & regard.causal(),
        regard.dense(torch.arange(31) % 3 > 0),
    ],
    ids=repr,
)
@pytest.mark.parametrize("keys", [None, (5, 24)], ids=["all keys", "some keys"])
def test_an_image_of_a_window_is_that_of_the_submatrix(mask, keys):
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 3, 29, 7, generator=generator)
    key = torch.randn(2, 1, 31, 7, generator=generator)
    pattern = regard.Pattern(query, key, mask=mask)
    first, stop = keys or (0, 31)
    shown = pattern.dense()[..., 11:23, first:stop]
    pixels = pattern.image(100, 100, queries=(11, 23), keys=keys)
    # One pixel a weight; both are float32 exponentials of the same scores.
    torch.testing.assert_close(pixels, shown, rtol=0, atol=1e-6)
    mean = pattern.image(1, 1, queries=(11, 23), keys=keys)
    torch.testing.assert_close(mean[..., 0, 0], shown.mean((-2, -1)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("window", [(3, 3), (-1, 2), (0, 30), (5, 2)])
def test_an_image_refuses_windows_outside_the_pattern(window):
    pattern = regard.Pattern(torch.randn(29, 7), torch.randn(31, 7))
    with pytest.raises(ValueError, match=r"queries=\(.*\) is not a range within 0 … 29"):
        pattern.image(5, 5, queries=window)
