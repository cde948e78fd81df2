"""The kernels' readouts: of each instruction set, at sizes about their blocks, against float64."""

import itertools
import math
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.cases import HALF, cases
from support.cpu_paths import EACH_SET, SETS, forced, streamed
from support.patterns import (
    NAMES,
    READOUTS,
    assert_definitions,
    assert_exact,
    defined_readouts,
    everything,
    flat,
    inputs,
    masks,
    normal,
)

import regard
from regard.backends.kernel_spec import Kind
from regard.pattern import reading
from regard.pattern.readouts import Distance, Entropy, Image, Mass, Offsets, Received, TopK

pytestmark = pytest.mark.skipif(not SETS, reason="needs the native library")

# About the lanes of a vector, the rows of a task, the keys of a strip and of a block; single rows
# and keys; more of one than of the other.
LENGTHS = [(1, 1), (1, 193), (15, 16), (16, 17), (17, 15), (63, 65), (64, 64), (65, 63), (129, 96)]
LENGTHS += [(191, 193), (193, 191), (331, 257), (67, 701)]


def test_kinds_are_numbered_as_in_the_header():
    header = Path(__file__).parents[2] / "src" / "native" / "abi.h"
    (listed,) = re.findall(r"enum \{([^}]*REGARD_LOGSUMEXP[^}]*)\}", header.read_text("utf-8"))
    names = re.findall(r"^ *REGARD_(\w+),", listed, re.MULTILINE)
    assert {kind.name: kind.value for kind in Kind} == {n: i for i, n in enumerate(names)}


# Against the definition


@pytest.mark.parametrize("name", EACH_SET)
@given(cases(dtypes=(torch.float32, *HALF)), st.integers(1, 9), st.booleans(), st.data())
def test_every_readout_is_its_definition(name, case, size, known, data):
    keys = case.key.shape[-2]
    marked = data.draw(st.lists(st.integers(-keys, keys - 1), max_size=4))
    coefficients = normal(3, case.query.shape[-2])
    with forced(name):
        pattern = regard.Pattern(case.query, case.key, **case.options)
        if known:
            assert pattern.logsumexp.shape == case.fully_masked.shape
        results = list(pattern.read(*defined_readouts(size, marked)))
        logsumexp, dense, product = pattern.logsumexp, pattern.dense(), coefficients @ pattern
    tolerance = assert_definitions(case, size, marked, results)
    assert_exact(case, tolerance, dense, logsumexp, product, coefficients)


# At sizes about those of the kernels, against torch in float64


PAIRS = [(lengths, name) for lengths in LENGTHS for name in ("none", "causal")]
PAIRS += [(lengths, name) for lengths in ((5, 70), (193, 191)) for name in NAMES[2:]]


def assert_close_to_exact(results, exact, instructions, *, atol):
    for what, result in results.items():
        # Scores below 10 are off by some 1e-6, and weights by as much of their size.
        torch.testing.assert_close(
            result.double(),
            exact[what],
            rtol=1e-5,
            atol=atol,
            msg=lambda m, w=what: f"{instructions}, {w}: {m}",
        )


# The sets of instructions share what is exact: it takes ten times as long as what is compared.


@pytest.mark.each_once
@pytest.mark.parametrize(
    ("lengths", "name", "dtype"),
    [
        pytest.param(*pair, dtype, marks=[pytest.mark.thorough] * ((i + j) % 5 > 0))
        for i, pair in enumerate(PAIRS)
        for j, dtype in enumerate((torch.float32, *HALF))
    ],
)
def test_results_are_those_of_float64(lengths, name, dtype):
    query, key = inputs(*lengths, dtype)
    options = masks(*lengths)[name]
    exact = everything(regard.Pattern(query.double(), key.double(), **options))
    for instructions in SETS:
        with forced(instructions):
            results = everything(regard.Pattern(query, key, **options))
        assert_close_to_exact(results, exact, instructions, atol=2e-5)


def test_more_keys_than_16_bits_can_count():
    query, key = normal(2, 3, 8), normal(2, 70_001, 8, seed=1)
    exact = everything(regard.Pattern(query.double(), key.double()))
    for instructions in SETS:
        with forced(instructions):
            results = everything(regard.Pattern(query, key))
        # A distance is a mean of numbers up to 70,001.
        assert_close_to_exact(results, exact, instructions, atol=1e-6)


def test_sums_over_many_rows_and_keys_keep_their_precision(instructions):
    """Where all weights are alike, sums of floats would be off by more with every row."""
    length, keys = 20_011, 10_007
    pattern = regard.Pattern(torch.zeros(length, 4), torch.zeros(keys, 4))
    received, image, mass, entropy, distance = pattern.read(
        Received(), Image(1, 2), Mass(slice(None)), Entropy(), Distance()
    )
    product = torch.ones(length) @ pattern
    # Every weight is off alike, by the rounding of a log-sum-exp near 9.
    digits = {"rtol": 2e-6, "atol": 0}
    for sums in (received, product):
        torch.testing.assert_close(sums, torch.full((keys,), length / keys), **digits)
    torch.testing.assert_close(image, torch.full((1, 2), 1 / keys), **digits)
    torch.testing.assert_close(mass, torch.ones(length), **digits)
    torch.testing.assert_close(entropy, torch.full((length,), math.log(keys)), **digits)
    first = keys - length  # the position of the first query, far before the first key
    torch.testing.assert_close(distance[0], torch.tensor((keys - 1) / 2 - first), **digits)


# The strongest keys


@pytest.mark.parametrize("k", [1, 3, 4, 5, 7, 8, 15, 16, 17, 33, 97, 200])
@pytest.mark.parametrize("mask", [None, regard.causal(), regard.window(9)])
def test_topk_finds_and_ranks_keys(instructions, k, mask):
    query, key = normal(2, 67, 6), normal(2, 131, 6, seed=1)
    pattern = regard.Pattern(query, key, mask=mask)
    top, dense = pattern.topk(k), pattern.dense()
    k = min(k, 131)
    expected = dense.sort(dim=-1, descending=True, stable=True)
    visible = (regard.Mask() if mask is None else mask).visible(67, 131, (2,))
    ranked = torch.arange(k) < visible.sum(-1, keepdim=True)
    assert torch.equal(top.weights, expected.values[..., :k])
    assert torch.equal(top.positions, expected.indices[..., :k].masked_fill(~ranked, -1))


@pytest.mark.parametrize("k", [3, 20])
def test_of_equal_weights_the_lower_key_comes_first(instructions, k):
    key = torch.tensor([0.0, 1.0, 0.0, 2.0]).repeat(60)[:, None]
    top = regard.Pattern(torch.ones(70, 1), key).topk(k)
    order = [*range(3, 240, 4), *range(1, 240, 4)]
    assert torch.equal(top.positions, torch.tensor(order[:k]).expand(70, -1))


@pytest.mark.parametrize("k", [1, 5, 40])
@pytest.mark.parametrize("step", [1, 5])
def test_topk_of_increasing_scores(instructions, k, step):
    """Every key, or every block of `step` equal ones, is above all before it; half of the rows."""
    score = torch.arange(413) // step / 64
    query = torch.ones(2, 70, 1)
    query[1] = -1
    key = score[:, None].expand(2, -1, -1)
    pattern = regard.Pattern(query, key, mask=regard.causal(), scale=1.0)
    top = pattern.topk(k)
    expected = pattern.dense().sort(dim=-1, descending=True, stable=True)
    assert torch.equal(top.positions, expected.indices[..., :k])
    assert torch.equal(top.weights, expected.values[..., :k])


def test_keys_of_weight_zero_are_named_as_long_as_they_are_visible(instructions):
    query, key = torch.ones(70, 1), torch.zeros(90, 1)
    key[7::2] = -math.inf
    top = regard.Pattern(query, key, mask=regard.window(4, offset=0)).topk(3)
    assert top.positions[9].tolist() == [6, 8, 7]
    assert top.weights[9].tolist() == [0.5, 0.5, 0]
    assert top.positions[0].tolist() == [0, -1, -1]


# NaN and infinity


@pytest.mark.parametrize("stray", [math.nan, math.inf, -math.inf, 3e38])
@pytest.mark.parametrize("name", ["causal", "padding", "dense", "early"])
@pytest.mark.parametrize("lengths", [(5, 70), (131, 193)])
def test_hidden_values_do_not_affect_readouts(instructions, stray, name, lengths):
    query, key = inputs(*lengths)
    hidden = torch.zeros(2, lengths[1], dtype=torch.bool)
    hidden[:, lengths[1] // 2 :] = True  # from every query of that entry
    hidden[1, 3] = True
    options = masks(*lengths)[name]
    mask = options["mask"] & regard.dense(~hidden[:, None, None])
    clean = regard.Pattern(query, key, **options | {"mask": mask})
    soiled = key.masked_fill(hidden[:, None, :, None], stray)
    expected = everything(clean)
    results = everything(regard.Pattern(query, soiled, **options | {"mask": mask}))
    for what, result in results.items():
        assert torch.equal(result, expected[what]), what


@pytest.mark.each_once
@pytest.mark.parametrize("where", ["query", "key"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("lengths", "at"), [((37, 70), 12), ((131, 193), 80)])
def test_a_visible_nan_makes_the_visible_part_of_its_row_nan(
    instructions, where, name, lengths, at
):
    query, key = inputs(*lengths)
    options = masks(*lengths)[name]
    if where == "query":
        query[1, 0, lengths[0] - 2] = math.nan
    else:
        key[1, 0, at] = (
            math.nan
        )  # which every mask shows to some queries, and most hide from others
    with streamed():
        expected = regard.Pattern(query, key, **options)
        wanted = {what: t.isnan() for what, t in everything(expected).items()}
        positions = expected.topk(5).positions
    pattern = regard.Pattern(query, key, **options)
    results = everything(pattern)
    keys = pattern.topk(5).positions
    assert bool(wanted["weights"].any())
    for what, result in results.items():
        if what not in {"rows @ pattern", "logsumexp"}:
            assert torch.equal(result.isnan(), wanted[what]), what
    assert torch.equal(results["rows @ pattern"].isnan()[..., 0, :], wanted["weights"].any(-2))
    assert torch.equal(keys >= 0, positions >= 0)
    visible = pattern.dense() != 0
    assert bool(visible.gather(-1, keys.clamp_min(0))[keys >= 0].all())


# To the last bit


@pytest.mark.each_once
@pytest.mark.parametrize(
    ("lengths", "name"),
    list(itertools.product([(5, 70), (700, 331)], ["causal", "padding", "bias"])),
)
def test_readouts_are_bitwise_independent_of_threads_and_batch(
    instructions, lengths, name, threads
):
    query, key = inputs(*lengths)
    threads(1)
    whole = everything(regard.Pattern(query, key, **masks(*lengths)[name]))
    for number in (2, 3):
        threads(number)
        again = everything(regard.Pattern(query, key, **masks(*lengths)[name]))
        for what, result in again.items():
            assert torch.equal(result, whole[what]), (what, number)
    for entry in range(2):  # and by three threads
        one = slice(entry, entry + 1)
        options = masks(*lengths, one)[name]
        alone = everything(regard.Pattern(query[one], key[one], **options))
        for what, result in alone.items():
            assert torch.equal(result[0], whole[what][entry]), (what, entry)


def test_readouts_are_bitwise_independent_of_other_readouts(instructions):
    pattern = regard.Pattern(*inputs(131, 193), mask=regard.causal())
    readouts = (*READOUTS, TopK(40), Mass(0), Mass([5, 3]), Offsets(3), Image(7, 200))
    together = pattern.read(*readouts)
    alone = [pattern.read(readout)[0] for readout in readouts]
    for one, other in zip(flat(together), flat(alone), strict=True):
        assert torch.equal(one, other)


def test_all_are_taken_in_one_pass_and_none_is_streamed(monkeypatch):
    passes = []
    read = reading.native.read
    monkeypatch.setattr(
        reading.native, "read", lambda *arguments: passes.append(arguments[1]) or read(*arguments)
    )
    monkeypatch.setattr(reading, "stream", lambda *_: pytest.fail("it was streamed"))
    regard.Pattern(*inputs(5, 7)).read(*READOUTS)
    assert [len(orders) for orders in passes] == [len(READOUTS) + 1]  # and the log-sum-exp


# Inputs as they come


def test_results_do_not_depend_on_input_strides(instructions):
    query, key = inputs(67, 131)
    ways = {
        "transposed": [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (query, key)],
        "columns": [t.mT.contiguous().mT for t in (query, key)],
        "gaps": [torch.stack([t, t * math.nan], -1).flatten(-2)[..., ::2] for t in (query, key)],
    }
    plain = everything(regard.Pattern(query, key, mask=regard.causal()))
    for how, tensors in ways.items():
        results = everything(regard.Pattern(*tensors, mask=regard.causal()))
        for what, result in results.items():
            assert torch.equal(result, plain[what]), (how, what)


def test_a_log_sum_exp_of_any_layout_is_taken():
    query, key = inputs(5, 7)
    right = regard.Pattern(query, key)
    apart = torch.stack([right.logsumexp, right.logsumexp], -1)[..., 0]
    for known in (apart, right.logsumexp.double(), right.logsumexp[:, :1].expand(-1, 6, -1)):
        pattern = regard.Pattern(query, key, logsumexp=known)
        assert torch.equal(pattern.dense()[:, 0], right.dense()[:, 0])


def test_inputs_without_rows_or_keys():
    for queries, keys in ((0, 7), (5, 0), (0, 0)):
        pattern = regard.Pattern(torch.ones(2, queries, 3), torch.ones(2, keys, 3))
        assert all(bool(t.isfinite().all()) for t in flat(pattern.read(*READOUTS)))
        assert pattern.received().shape == (2, keys)
        assert not bool(pattern.received().any())
