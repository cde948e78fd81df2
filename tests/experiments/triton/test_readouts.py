"""The Triton kernels' readouts against float64: on a GPU, or on a CPU under the interpreter."""

import functools
import itertools
import math

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.cases import HALF, cases
from support.cpu_paths import streamed
from support.definitions import defined
from support.patterns import (
    NAMES,
    assert_definitions,
    assert_exact,
    defined_readouts,
    everything,
    flat,
    normal,
)
from support.patterns import inputs as inputs_of
from support.patterns import masks as masks_of
from support.triton_device import DEVICE, kernels, moved

import regard
from regard.pattern import divergence, reading
from regard.pattern.readout import Sizes
from regard.pattern.readouts import (
    Blocks,
    Distance,
    Entropy,
    Image,
    Lag,
    Mass,
    Max,
    MaxScore,
    Offsets,
    Received,
    Spans,
    TopK,
)

pytest.importorskip("triton")

READOUTS = (
    *(TopK(5), Max(), Entropy(), Distance(), Mass(slice(3, 40, 3)), MaxScore()),
    *(Received(), Received("max"), Received("mean"), Offsets(70), Image(13, 11), Image(1, 2)),
)
FEW = TopK(5), Entropy(), Received(), Offsets(70), Image(13, 11)
# About the queries and the keys of a tile, which are 64, and of a tile of float32 keys, 32.
LENGTHS = [(1, 1), (31, 33), (65, 63), (131, 67)]


INTERPRETED = [] if torch.cuda.is_available() else [pytest.mark.thorough]


def thorough(*values):
    """As parameters: where the interpreter computes, which takes seconds, `make thorough` does."""
    return pytest.param(*values, marks=INTERPRETED)


def inputs(queries, keys, dtype=torch.float32):
    """Two entries of two heads, which share their keys."""
    return inputs_of(queries, keys, dtype, heads=2, groups=1)


def masks(queries, keys, entries=slice(None)):
    return masks_of(queries, keys, entries, heads=2)


def assert_close(results, exact, tolerance):
    for what, result in results.items():
        torch.testing.assert_close(
            result.double(), exact[what], **tolerance, msg=lambda m, w=what: f"{w}: {m}"
        )


def any_problem(test):
    """A few where the interpreter computes, which takes seconds for each, in `make thorough`."""
    test = settings(max_examples=2, phases=[Phase.generate])(test)
    return functools.reduce(lambda made, mark: mark(made), INTERPRETED, test)


@any_problem
@given(cases(dtypes=(torch.float32, *HALF)), st.integers(1, 9), st.booleans(), st.data())
def test_every_readout_is_its_definition(case, size, known, data):
    keys = case.key.shape[-2]
    marked = data.draw(st.lists(st.integers(-keys, keys - 1), max_size=4))
    coefficients = normal(3, case.query.shape[-2])
    with kernels():
        pattern = regard.Pattern(*moved_case(case), **moved(case.options))
        if known:
            assert pattern.logsumexp.shape == case.fully_masked.shape
        results = [result.cpu() for result in pattern.read(*defined_readouts(size, marked))]
        logsumexp, dense = pattern.logsumexp.cpu(), pattern.dense().cpu()
        product = (moved(coefficients) @ pattern).cpu()
    tolerance = assert_definitions(case, size, marked, results)
    assert_exact(case, tolerance, dense, logsumexp, product, coefficients)


@any_problem
@given(
    cases(dtypes=(torch.float32, *HALF)), st.sampled_from([None, slice(-2, None)]), st.booleans()
)
def test_readouts_of_chosen_queries_and_groups_are_their_definitions(case, queries, grouped):
    expected = defined(case, queries, grouped=grouped)
    with kernels():
        pattern = regard.Pattern(*moved_case(case), **moved(case.options))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reading, "stream", lambda *_: pytest.fail("it was streamed"))
            results = pattern.read(*expected)
    tolerance = 8 * case.rounding * max(case.visible.shape[-2:])
    for (readout, wanted), result in zip(expected.items(), results, strict=True):
        for one, exact in zip(flat([result]), flat([wanted]), strict=True):
            torch.testing.assert_close(
                one.double().cpu(),
                exact,
                rtol=0,
                atol=tolerance,
                msg=lambda m, r=readout: f"{r}: {m}",
            )


@pytest.mark.parametrize("name", ["window", thorough("alibi")])
def test_spans_lags_and_blocks_cross_tiles(name):
    query, key = (tensor[:1] for tensor in inputs(67, 131))
    options = masks(67, 131)[name]
    places = 2 * torch.arange(131), torch.arange(67) + 131
    labels = [j * 5 % 40 - 2 for j in range(131)]
    readouts = (
        *(Spans(labels), Lag(1), Lag(-3), Lag(37), Lag(7, *places), MaxScore("head")),
        *(Blocks(5, 7), Blocks(29, 3, "max")),
    )
    exact = flat(regard.Pattern(query.double(), key.double(), **options).read(*readouts))
    with kernels():
        results = flat(regard.Pattern(moved(query), moved(key), **moved(options)).read(*readouts))
    for result, wanted in zip(results, exact, strict=True):
        torch.testing.assert_close(result.double().cpu(), wanted, rtol=1e-5, atol=2e-5)


def moved_case(case):
    return moved(case.query), moved(case.key)


BOTH = (torch.float32, torch.bfloat16)
PLAIN = [(lengths, NAMES[i % 2], BOTH[i // 2]) for i, lengths in enumerate(LENGTHS)]
OTHER = [(lengths, NAMES[1 - i % 2], BOTH[1 - i // 2]) for i, lengths in enumerate(LENGTHS)]
MASKED = [((37, 70), name, BOTH[i % 2]) for i, name in enumerate(NAMES[2:])]


@pytest.mark.parametrize(
    ("lengths", "name", "dtype"),
    [
        thorough((65, 63), "hidden", torch.bfloat16),
        *(((5, 37), name, torch.float32) for name in ("early", "bias")),
        *(thorough(*one) for one in PLAIN + OTHER + MASKED),
        thorough((131, 149), "window", torch.float32),
    ],
)
def test_results_are_those_of_float64(lengths, name, dtype):
    query, key = inputs(*lengths, dtype)
    options = masks(*lengths)[name]
    exact = everything(regard.Pattern(query.double(), key.double(), **options), READOUTS)
    with kernels():
        pattern = regard.Pattern(moved(query), moved(key), **moved(options))
        results = moved_back(everything(pattern, READOUTS))
    # Scores below 10 are off by some 1e-6, and weights by as much of their size.
    assert_close(results, exact, {"rtol": 1e-5, "atol": 2e-5})


def moved_back(results):
    return {what: result.cpu() for what, result in results.items()}


WIDTHS, DTYPES = (2, 67, 256), (torch.float32, *HALF)
EACH_ONCE = list(zip(WIDTHS, DTYPES, strict=True))
OTHERS = [one for one in itertools.product(WIDTHS, DTYPES) if one not in EACH_ONCE]


@pytest.mark.parametrize(("dim", "dtype"), EACH_ONCE + [thorough(*one) for one in OTHERS])
def test_heads_of_any_width_are_read(dim, dtype):
    query, key = normal(2, 35, dim).to(dtype), normal(1, 37, dim, seed=1).to(dtype)
    options = {"mask": regard.causal()}
    exact = everything(regard.Pattern(query.double(), key.double(), **options), FEW)
    with kernels():
        results = everything(regard.Pattern(moved(query), moved(key), **options), FEW)
    assert_close(moved_back(results), exact, {"rtol": 1e-5, "atol": 2e-5})


# The strongest keys


@pytest.mark.parametrize(
    ("k", "mask"),
    [
        *((3, regard.causal()), (8, regard.window(9)), (97, None)),
        *(thorough(1, None), thorough(33, regard.causal())),
    ],
)
def test_the_strongest_keys_are_found_and_ranked(k, mask):
    query, key = moved(normal(2, 67, 6)), moved(normal(2, 131, 6, seed=1))
    with kernels():
        pattern = regard.Pattern(query, key, mask=mask)
        top, dense = pattern.topk(k), pattern.dense()
    k = min(k, 131)
    expected = dense.sort(dim=-1, descending=True)
    visible = moved((regard.Mask() if mask is None else mask).visible(67, 131, (2,)))
    actual = torch.arange(k, device=DEVICE) < visible.sum(-1, keepdim=True)
    # Another order of the same products: weights agree but for the last bits, by which two of them
    # may have changed places.
    close = {"rtol": 1e-5, "atol": 1e-7}
    torch.testing.assert_close(top.weights, expected.values[..., :k], **close)
    assert torch.equal(top.positions >= 0, actual)
    named = dense.gather(-1, top.positions.clamp_min(0)).masked_fill(~actual, 0)
    torch.testing.assert_close(top.weights, named, **close)
    for row in top.positions.flatten(0, -2):
        assert row[row >= 0].unique().numel() == (row >= 0).sum()


@pytest.mark.parametrize("k", [3, 20])
def test_of_equal_weights_the_lower_key_comes_first(k):
    key = moved(torch.tensor([0.0, 1.0, 0.0, 2.0]).repeat(60)[:, None])
    with kernels():
        top = regard.Pattern(torch.ones(70, 1, device=DEVICE), key).topk(k)
    order = [*range(3, 240, 4), *range(1, 240, 4)]
    assert torch.equal(top.positions.cpu(), torch.tensor(order[:k]).expand(70, -1))


def test_keys_of_weight_zero_are_named_as_long_as_they_are_visible():
    query, key = torch.ones(70, 1), torch.zeros(90, 1)
    key[7::2] = -math.inf
    with kernels():
        top = regard.Pattern(moved(query), moved(key), mask=regard.window(4, offset=0)).topk(3)
    assert top.positions[9].tolist() == [6, 8, 7]
    assert top.weights[9].tolist() == [0.5, 0.5, 0]
    assert top.positions[0].tolist() == [0, -1, -1]


# What is not a number


@pytest.mark.parametrize(
    ("stray", "name"),
    [
        (math.nan, "causal"),
        thorough(math.inf, "padding"),
        thorough(-math.inf, "dense"),
        thorough(math.nan, "early"),
    ],
)
def test_what_is_hidden_never_comes_out(stray, name):
    query, key = inputs(37, 70)
    hidden = torch.zeros(2, 70, dtype=torch.bool)
    hidden[:, 35:] = True  # from every query of that entry
    hidden[1, 3] = True
    options = masks(37, 70)[name]
    options = options | {"mask": options["mask"] & regard.dense(~hidden[:, None, None])}
    soiled = key.masked_fill(hidden[:, None, :, None], stray)
    with kernels():
        expected, results = (
            everything(regard.Pattern(moved(query), moved(k), **moved(options)), FEW)
            for k in (key, soiled)
        )
    for what, result in results.items():
        assert torch.equal(result, expected[what]), what


@pytest.mark.parametrize(
    ("where", "name"),
    [
        thorough("key", "none"),
        thorough("query", "causal"),
        thorough("key", "padding"),
        thorough("query", "dense"),
        thorough("key", "alibi"),
    ],
)
def test_a_visible_nan_fills_its_row_as_far_as_it_sees(where, name):
    query, key = inputs(37, 70)
    options = masks(37, 70)[name]
    if where == "query":
        query[1, 0, 35] = math.nan
    else:
        key[1, 0, 12] = math.nan
    with streamed():
        expected = regard.Pattern(query, key, **options)
        wanted = {what: t.isnan() for what, t in everything(expected, READOUTS).items()}
        positions = expected.topk(5).positions
    with kernels():
        pattern = regard.Pattern(moved(query), moved(key), **moved(options))
        results = moved_back(everything(pattern, READOUTS))
        actual = pattern.topk(5).positions.cpu()
    assert bool(wanted["weights"].any())
    for what, result in results.items():
        if what not in {"rows @ pattern", "logsumexp"}:
            assert torch.equal(result.isnan(), wanted[what]), what
    assert torch.equal(results["rows @ pattern"].isnan()[..., 0, :], wanted["weights"].any(-2))
    assert torch.equal(actual >= 0, positions >= 0)


def test_a_stray_row_is_blind_where_it_sees_no_key_of_those_asked_for():
    query, key = inputs(9, 70)
    query[0, 1, 4] = math.nan
    visible = torch.ones(9, 70, dtype=torch.bool)
    visible[4, 10:45] = False
    readouts = (Max(), Entropy(), Received(), TopK(2))

    def read():
        pattern = regard.Pattern(moved(query), moved(key), mask=regard.dense(moved(visible)))
        known = pattern.logsumexp.flatten(0, 1)
        problem = pattern.problem
        sizes = Sizes(problem.leading, 9, 70, torch.float32, known.device)
        return flat(reading.take(readouts, problem, sizes, known, slice(10, 45)))

    with streamed():
        expected = read()
    with kernels():
        results = read()
    assert not any(bool(t.isnan().any()) for t in expected)
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result.cpu(), wanted.cpu(), rtol=1e-5, atol=1e-6)


# To the last bit


@pytest.mark.parametrize("name", [thorough("causal"), thorough("padding"), thorough("bias")])
def test_the_rest_of_the_batch_changes_no_bit(name):
    query, key = (moved(t) for t in inputs(70, 37))

    def read(entries):
        options = moved(masks(70, 37, entries)[name])
        pattern = regard.Pattern(query[entries], key[entries], **options)
        return dict(enumerate([*flat(pattern.read(*FEW)), pattern.logsumexp]))

    with kernels():
        whole = read(slice(None))
        for entry in range(2):
            for what, result in read(slice(entry, entry + 1)).items():
                assert torch.equal(result[0], whole[what][entry]), (what, entry)


@pytest.mark.thorough
def test_any_number_of_readouts_is_taken_in_one_pass(monkeypatch):
    """But offsets, for which only tiles along the diagonal are read, and a second image."""
    from regard_experiments.gpu.triton import _one_pass, _read

    passes = []

    class Counted:
        def __init__(self, kernel):
            self.kernel = kernel

        def __getitem__(self, grid):
            passes.append(self.kernel)
            return self.kernel[grid]

    for module, kernel in ((_one_pass, "read_rows"), (_read, "read_columns")):
        monkeypatch.setattr(module, kernel, Counted(getattr(module, kernel)))
    monkeypatch.setattr(reading, "stream", lambda *_: pytest.fail("it was streamed"))
    readouts = [r for r in READOUTS if r != Image(1, 2)] + [TopK(2), Mass(0), Mass(1), Offsets(3)]
    pattern = regard.Pattern(*(moved(t[:1]) for t in inputs(37, 41)), mask=regard.causal())
    with kernels():
        assert pattern.logsumexp.shape == (1, 2, 37)
        together = pattern.read(*readouts)
        assert len(passes) == 1
        alone = [pattern.read(readout)[0] for readout in readouts]
    for readout, one, other in zip(readouts, together, alone, strict=True):
        for a, b in zip(flat([one]), flat([other]), strict=True):
            if isinstance(readout, Received):  # alone it has a kernel of its own
                torch.testing.assert_close(a, b, rtol=1e-6, atol=0)
            else:
                assert torch.equal(a, b), readout


# Sums over queries, in parts


@pytest.mark.parametrize("name", [thorough("none"), thorough("early"), thorough("padding")])
def test_a_chunk_of_queries_holds_several_blocks(name, monkeypatch):
    """As it does from 64 blocks on; here the chunks are two, of two blocks and of three."""
    from regard_experiments.gpu.triton import _one_pass, _read

    for module in (_one_pass, _read):
        monkeypatch.setattr(module, "CHUNKS", 2)
    query, key = inputs(270, 37)
    options = masks(270, 37)[name]
    readouts = (TopK(1), Received(), Offsets(70), Image(17, 5))
    exact = regard.Pattern(query.double(), key.double(), **options).read(*readouts)
    with kernels():
        results = regard.Pattern(moved(query), moved(key), **moved(options)).read(*readouts)
    for readout, result, wanted in zip(readouts[1:], results[1:], exact[1:], strict=True):
        off = (result.cpu().double() - wanted).abs()
        assert bool((off <= 2e-5 + 1e-5 * wanted).all()), readout


@given(st.integers(1, 60), st.integers(1, 60), st.sampled_from([1, 4, 7]), st.integers(0, 9))
def test_a_row_of_pixels_is_made_of_the_blocks_that_it_overlaps(queries, rows, block, beyond):
    from regard_experiments.gpu.triton._partial_sums import Parts

    height = queries + min(beyond, (queries - 1) // rows)  # the last row is not all beyond
    parts = Parts.of_image(queries, height, rows, block)
    for part, base in enumerate(parts.base):
        top, bottom = part * block, min((part + 1) * block, queries)
        met = [
            r for r in range(rows) if r * height < bottom * rows and (r + 1) * height > top * rows
        ]
        assert base == met[0]
        assert met[-1] < base + parts.slots
        for row in range(rows):
            assert (parts.since[row] <= part < parts.until[row]) == (row in met)


# Inputs as they come


@pytest.mark.thorough
def test_strides_of_the_inputs_change_nothing():
    query, key = inputs(5, 35)
    ways = {
        "transposed": [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (query, key)],
        "columns": [t.mT.contiguous().mT for t in (query, key)],
        "gaps": [torch.stack([t, t * math.nan], -1).flatten(-2)[..., ::2] for t in (query, key)],
    }
    with kernels():
        mask = regard.causal()
        plain = everything(regard.Pattern(moved(query), moved(key), mask=mask), READOUTS)
        for how, tensors in ways.items():
            results = everything(regard.Pattern(*map(moved, tensors), mask=mask), READOUTS)
            for what, result in results.items():
                assert torch.equal(result, plain[what]), (how, what)


def test_more_keys_are_ranked_by_torch():
    query, key = inputs(5, 70)
    with kernels():
        top = regard.Pattern(moved(query), moved(key)).topk(66)
    exact = regard.Pattern(query.double(), key.double()).topk(66)
    torch.testing.assert_close(top.weights.cpu().double(), exact.weights, rtol=1e-5, atol=1e-6)


def test_inputs_without_rows_or_keys():
    for queries, keys in ((0, 7), (5, 0), (0, 0)):
        query, key = (torch.ones(2, n, 3, device=DEVICE) for n in (queries, keys))
        with kernels():
            pattern = regard.Pattern(query, key)
            assert not any(bool(t.isnan().any()) for t in flat(pattern.read(*READOUTS)))
            assert not bool(pattern.received().any())


# Two patterns


@pytest.mark.parametrize("kind", ["kl", "js", thorough("tv")])
def test_divergences_are_those_of_float64(kind, monkeypatch):
    """Of heads of unequal widths, masks that end in other tiles, and sinks."""
    query, key = (tensor[:1] for tensor in inputs(67, 131))
    wide, noisy = normal(1, 2, 67, 19, seed=5), normal(1, 1, 131, 19, seed=6)
    hidden = regard.masks.hide(slice(70, 75)) & regard.window(40)
    sinks = normal(2, 2, seed=7)
    options = (masks(67, 131)["alibi"] | {"sink": sinks[0]}, {"mask": hidden, "sink": sinks[1]})
    if kind == "kl":  # finite where the other sees all that the first one does
        options = options[::-1]
    pairs = [(query, key), (wide, noisy)]

    def compared(change):
        one, other = (
            regard.Pattern(*map(change, tensors), **moved(own))
            for tensors, own in zip(pairs, options, strict=True)
        )
        return one.divergence(other, kind).cpu().double()

    exact = compared(lambda tensor: moved(tensor.double()))
    monkeypatch.setattr(divergence, "_written_out", lambda *_: pytest.fail("torch compared"))
    with kernels():
        result = compared(moved)
        one = regard.Pattern(moved(query[..., :5, :]), moved(key[..., :7, :]))
        assert not bool(one.divergence(one, kind).any())
    assert bool(exact.isfinite().all())
    torch.testing.assert_close(result, exact, rtol=1e-5, atol=2e-5)
