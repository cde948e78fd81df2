"""The readouts of the page of definitions, each against its definition on the oracle's weights."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.cases import cases
from support.cpu_paths import way
from support.definitions import defined
from support.draws import normal
from support.patterns import flat

import regard
from regard.pattern import MeanPattern
from regard.pattern._operator import LinearOperator
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

# By the kernels where they know it, or streamed with so many scores in a block.
BLOCKS = st.sampled_from([None, 10, 300])


READOUTS = (
    *(MaxScore(), MaxScore("head"), Received("mean"), Received("max", slice(3, 12))),
    *(Spans([j % 5 - 1 for j in range(17)]), Lag(3), Blocks(5, 7), Blocks(5, 7, "max")),
)
OLDER = (TopK(3), Max(), Entropy(), Distance(), Offsets(5), Mass([3, 5]), Received(), Image(4, 3))
QUERIES = (None, slice(-2, None), slice(1, None, 2), [0], [], [-1, 0, -1])


@given(cases(), BLOCKS, st.sampled_from(QUERIES), st.booleans())
def test_every_readout_is_its_definition(case, block, queries, grouped):
    expected = defined(case, queries, grouped=grouped)
    with way(block):
        results = regard.Pattern(case.query, case.key, **case.options).read(*expected)
    steps = regard.explain(case.query, case.key, case.value, **case.options)
    written = {r: by_steps(steps, r) for r in expected if getattr(r, "key_positions", None) is None}
    # A weight is off by the rounding of its score, relative to its size; sums multiply that.
    tolerance = 8 * case.rounding * max(case.visible.shape[-2:])
    pairs = [(r, expected[r], result) for r, result in zip(expected, results, strict=True)]
    for readout, wanted, result in pairs + [(r, expected[r], t) for r, t in written.items()]:
        for one, exact in zip(flat([result]), flat([wanted]), strict=True):
            torch.testing.assert_close(
                one.double(), exact, rtol=0, atol=tolerance, msg=lambda m, r=readout: f"{r}: {m}"
            )


def by_steps(steps, readout):
    """The readout by its definition on steps."""
    name = {MaxScore: "max_score", TopK: "topk"}.get(type(readout), type(readout).__name__.lower())
    unknown = {Spans: ("n",), Lag: ("key_positions", "query_positions")}.get(type(readout), ())
    options = {key: value for key, value in vars(readout).items() if key not in unknown}
    result = getattr(steps, name)(**options)
    if not isinstance(readout, Spans):
        return result
    return torch.nn.functional.pad(result, (0, readout.n - result.shape[-1]))


def test_steps_have_every_readout_of_a_pattern():
    of_patterns = {*dir(LinearOperator)} - {"read", "crop", "at", "sees", "visible_keys", "dense"}
    of_patterns -= {"shape", "ndim", "dtype", "device", "problem", "to"}
    methods = {name for name in of_patterns if not name.startswith("_")}
    steps = regard.explain(*normal(3, 2, 7, 5).double(), mask=regard.causal())
    assert {"mean", "divergence", *methods} <= {*dir(steps)}
    pattern = regard.Pattern(steps.query, steps.key, mask=regard.causal())
    for readout in OLDER:
        pairs = zip(flat(pattern.read(readout)), flat([by_steps(steps, readout)]), strict=True)
        for one, other in pairs:
            torch.testing.assert_close(one, other, msg=lambda m, r=readout: f"{r}: {m}")


@pytest.mark.parametrize("queries", QUERIES, ids=str)
def test_queries_are_chosen_by_an_index(queries):
    pattern = regard.Pattern(*torch.randn(2, 3, 7, 5))
    weights = pattern.dense()
    index = slice(None) if queries is None else queries
    chosen = weights[:, torch.arange(7)[index].unique()]
    torch.testing.assert_close(pattern.received(queries=queries), chosen.sum(1))


def test_a_mean_over_heads_is_a_pattern_with_every_readout():
    query, key = normal(2, 6, 13, 7), normal(2, 3, 17, 7, seed=1)
    mask = regard.causal() & regard.masks.hide(slice(3, 9), heads=[0, 2])
    pattern = regard.Pattern(query.double(), key.double(), mask=mask)
    mean, weights = pattern.mean(), pattern.dense().mean(1)
    # As one head whose scores are the logarithms of the averaged weights.
    readouts = [readout for readout in (*READOUTS, *OLDER) if not isinstance(readout, MaxScore)]
    positions = regard.causal() & regard.Mask(offset=4)
    one = regard.Pattern(
        *(torch.zeros(2, n, 1).double() for n in (13, 17)), mask=positions, bias=weights.log()
    )
    for readout, result, expected in zip(
        readouts, mean.read(*readouts), one.read(*readouts), strict=True
    ):
        for this, other in zip(flat([result]), flat([expected]), strict=True):
            torch.testing.assert_close(this, other, msg=lambda m, r=readout: f"{r}: {m}")
    torch.testing.assert_close(mean[1, 3:5], weights[1, 3:5])
    torch.testing.assert_close(mean[1].dense(), weights[1])
    torch.testing.assert_close(mean @ torch.arange(17.0), weights @ torch.arange(17.0).double())
    rows = normal(3, 13, seed=2).double()
    torch.testing.assert_close(rows @ mean, rows @ weights)
    torch.testing.assert_close(mean.singular_values(2), torch.linalg.svdvals(weights)[..., :2])
    torch.testing.assert_close(mean.image(3, 4, keys=(2, 13)), one.image(3, 4, keys=(2, 13)))
    with pytest.raises(regard.Error, match="has no scores of its own"):
        mean.read(MaxScore())
    hidden = regard.Pattern(query, key, mask=regard.causal(offset=-30)).mean()
    with pytest.raises(regard.Error, match="has no scores of its own"):
        hidden.read(MaxScore())
    with pytest.raises(TypeError, match=r"patterns\[1\] is a mean itself; give the patterns that"):
        MeanPattern([pattern[:, 0], mean])
    with pytest.raises(ValueError, match="no axis of heads"):
        regard.Pattern(query[0, 0], key[0, 0]).mean()
    with pytest.raises(ValueError, match="patterns of one shape"):
        MeanPattern([pattern, pattern[0]])


def test_selected_heads_have_no_groups():
    pattern = regard.Pattern(torch.randn(2, 6, 5, 7), torch.randn(2, 3, 11, 7))
    assert pattern.received(grouped=True).shape == (2, 3, 11)
    with pytest.raises(ValueError, match="read the whole pattern"):
        pattern[0].received(grouped=True)


def test_unknown_choices_are_refused():
    with pytest.raises(ValueError, match="each must be one of 'query', 'head', but is 'row'"):
        MaxScore("row")
    with pytest.raises(ValueError, match="reduce must be one of 'sum', 'mean', 'max'"):
        Received("median")
    with pytest.raises(ValueError, match="reduce must be one of 'mean', 'sum', 'max'"):
        Blocks(2, 2, "median")


def test_keys_after_the_last_label_belong_to_no_span():
    pattern = regard.Pattern(torch.randn(5, 7), torch.randn(11, 7))
    assert torch.equal(pattern.spans([1, 0]), pattern.spans([1, 0] + [-1] * 9))
    assert torch.equal(pattern.spans([1, 0]), pattern.spans([1, 0] + [-1] * 11))  # of no key


def test_sizes_that_do_not_fit_are_refused():
    pattern = regard.Pattern(torch.randn(5, 7), torch.randn(11, 7))
    with pytest.raises(ValueError, match="labels are 12, but there are only 11 keys"):
        pattern.spans([0] * 12)
    with pytest.raises(ValueError, match="labels go up to 2, but n=2"):
        Spans([0, 2], 2)
    with pytest.raises(ValueError, match="labels must be a vector"):
        Spans([[0], [2]])
    with pytest.raises(ValueError, match="give both or neither"):
        Lag(1, torch.arange(11))
    with pytest.raises(ValueError, match=r"key_positions has shape \(5,\), which does not fit"):
        pattern.read(Lag(1, torch.arange(5), torch.arange(5)))
    with pytest.raises(ValueError, match="query_positions are 4 for 5 queries"):
        pattern.read(Lag(1, torch.arange(11), torch.arange(4)))
    with pytest.raises(ValueError, match="at least one row and column, but rows=0, columns=3"):
        pattern.blocks(0, 3)


@pytest.mark.parametrize("lengths", [(1, 1), (67, 131), (130, 96)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernels_of_each_instruction_set_are_exact(instructions, lengths, dtype):
    query, key = (
        normal(2, h, n, 19, seed=n).to(dtype) for h, n in zip((6, 2), lengths, strict=True)
    )
    queries, keys = lengths
    places = 2 * torch.arange(keys), torch.arange(queries) + keys
    readouts = (
        *(MaxScore(), MaxScore("head"), Received("max"), Received("max", slice(3, None), True)),
        *(Spans([j * 5 % 7 - 2 for j in range(keys)], 5), Lag(1), Lag(-3), Lag(7, *places)),
        *(Blocks(queries, keys, "sum"), Blocks(1, 2 - keys % 2)),
    )
    for mask in (regard.Mask(), regard.causal() & regard.masks.hide(slice(3, 40), heads=[0, 3])):
        results = regard.Pattern(query, key, mask=mask).read(*readouts)
        exact = regard.Pattern(query.double(), key.double(), mask=mask).read(*readouts)
        for one, other in zip(flat(results), flat(exact), strict=True):
            # Scores below 10 are off by some 1e-6, and weights by as much of their size.
            torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=2e-5)


def test_a_weight_that_is_nan_is_read_as_such(instructions):
    x = normal(11, 7)
    x[3], mask = math.nan, regard.causal() & regard.window(3)
    readouts = (MaxScore(), Received("max"), Lag(1), Spans([0, 0, 1, 1, 1]))
    results = flat(regard.Pattern(x, x, mask=mask).read(*readouts))
    exact = flat(regard.Pattern(x.double(), x.double(), mask=mask).read(*readouts))
    for one, other in zip(results, exact, strict=True):
        assert torch.equal(one.isnan(), other.isnan())
        assert bool(one.isnan().any())
        assert not bool(one.isnan().all())


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("of", [None, "query", "key"])
def test_readouts_of_few_keys_are_bitwise_independent_of_readouts_of_all_keys(
    of, known, instructions
):
    """The kernels leave out blocks of keys at which no readout looks, but not where NaN is."""
    query, key = normal(2, 331, 19), normal(2, 409, 19, seed=1)
    if of is not None:
        {"query": query, "key": key}[of][0, 203, 5] = math.nan
    labels = [0 if 150 <= j < 160 else 1 if j == 401 else -1 for j in range(409)]
    mask = regard.causal() & regard.window(307)
    pattern = regard.Pattern(query, key, mask=mask)
    if known:
        _, pattern = regard.attention_with_pattern(query, key, key, mask=mask)
        assert pattern.logsumexp.isnan().any() == (of is not None)
    few = Mass([3, 192]), Mass([408]), Lag(1), Lag(-2), Lag(101), Spans(labels), Offsets(1)
    for readout in (*few, Offsets(23)):
        alone, (beside, _) = pattern.read(readout), pattern.read(readout, Entropy())
        _, with_context = regard.attention(query, key, key, mask=mask, read=[readout])
        others = (beside, *with_context) if known else (beside,)  # which are by log-sum-exps
        for one, other in zip(flat(alone) * len(others), flat(others), strict=True):
            torch.testing.assert_close(
                one, other, rtol=0, atol=0, equal_nan=True, msg=lambda m, r=readout: f"{r}: {m}"
            )
    torch.testing.assert_close(
        pattern[:, :, [7, 250]], pattern.dense()[:, :, [7, 250]], rtol=0, atol=0, equal_nan=True
    )


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_blocks_may_be_larger_than_the_pattern(reduce):
    query, key = normal(2, 11, 7), normal(2, 13, 7, seed=1)
    for dtype in (torch.float32, torch.float64):
        pattern = regard.Pattern(query.to(dtype), key.to(dtype))
        whole, larger = pattern.blocks(11, 13, reduce), pattern.blocks(10**15, 10**9, reduce)
        torch.testing.assert_close(larger, whole)


@pytest.mark.parametrize("block", [None, 2**8])
def test_results_are_bitwise_independent_of_the_batch_and_other_readouts(block):
    query, key = normal(3, 6, 13, 7), normal(3, 2, 17, 7, seed=1)
    with way(block):
        pattern = regard.Pattern(query, key, mask=regard.causal())
        together = pattern.read(*READOUTS)
        for readout, result in zip(READOUTS, together, strict=True):
            alone = regard.Pattern(query[1:2], key[1:2], mask=regard.causal())
            for one, other in zip(flat(alone.read(readout)), flat([result]), strict=True):
                assert torch.equal(one, other[1:2]), readout


# Two patterns, and products


def by_definition(p, q, kind):
    """Divergences of two rows of weights, by Python's own floats."""

    def relative_entropy(one, other):
        pairs = [(a, b) for a, b in zip(one, other, strict=True) if a > 0]
        return math.fsum(a * math.log(a / b) if b else math.inf for a, b in pairs)

    if kind == "tv":
        return math.fsum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2
    if kind == "kl":
        return relative_entropy(p, q)
    middle = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
    return (relative_entropy(p, middle) + relative_entropy(q, middle)) / 2


@pytest.mark.each_once
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("at_once", [2**20, 100])
@pytest.mark.parametrize("kind", ["kl", "js", "tv"])
def test_divergences_are_their_definitions(kind, at_once, dtype, monkeypatch):
    monkeypatch.setattr("regard.pattern.divergence._AT_ONCE", at_once)
    query, key, noise = (
        normal(2, 6, 13, 7),
        normal(2, 3, 17, 7, seed=1),
        normal(2, 3, 17, 7, seed=2),
    )
    options = {"mask": regard.causal() & regard.masks.hide(5), "sink": normal(6, seed=3)}
    one = regard.Pattern(query.to(dtype), key.to(dtype), **options)
    other = regard.Pattern(query.to(dtype), (key + 0.3 * noise).to(dtype), **options)
    exact = [
        torch.cat((weights, 1 - weights.sum(-1, keepdim=True)), -1).flatten(0, 2).tolist()
        for weights in (
            regard.Pattern(p.problem.query.double(), p.problem.key.double(), **options).dense()
            for p in (one, other)
        )
    ]
    expected = [by_definition(p, q, kind) for p, q in zip(*exact, strict=True)]
    result = one.divergence(other, kind)
    assert result.shape == (2, 6, 13)
    expected = torch.tensor(expected, dtype=torch.float64).reshape(2, 6, 13)
    tolerance = 32 * torch.finfo(dtype).eps  # logarithms are of scores up to some 10
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=tolerance)
    assert float(one.divergence(one, kind).max()) < 1e-15
    steps = [
        regard.explain(query.double(), p.problem.key.double(), key.double(), **options)
        for p in (one, other)
    ]
    torch.testing.assert_close(steps[0].divergence(steps[1], kind), expected, rtol=0, atol=1e-13)


def test_alibi_distances_count_the_remaining_keys_of_a_cache():
    query, key, slopes = (
        normal(2, 3, 5, 7),
        normal(2, 3, 17, 7, seed=1),
        torch.tensor([1.5, 0.5, 0.25]),
    )
    kept = torch.tensor([0, 2, 3, 7, 8, 11, 12, 13, 14, 15, 16])
    pattern = regard.Pattern(query, key, alibi=slopes)
    evicted = regard.Pattern(query, key[:, :, kept], alibi=slopes)
    weights, left = pattern.dense().double(), evicted.dense().double()
    expected = (weights - torch.zeros_like(weights).index_copy(-1, kept, left)).abs().sum(-1) / 2
    result = pattern.divergence(evicted, "tv", keys=kept)
    # Weights in float32, each to some units in the last place of scores below 64
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=64 * 2.0**-23)


def test_a_cache_whose_heads_keep_different_keys_is_compared():
    query, key = normal(2, 3, 5, 7).double(), normal(2, 3, 17, 7, seed=1).double()
    kept = torch.stack([torch.randperm(17)[:11].sort().values for _ in range(6)]).reshape(2, 3, 11)
    pattern = regard.Pattern(query, key)
    evicted = regard.Pattern(query, key.gather(2, kept[..., None].expand(-1, -1, -1, 7)))
    weights = pattern.dense()
    left = torch.zeros_like(weights).scatter(
        -1, kept[:, :, None].expand(-1, -1, 5, -1), evicted.dense()
    )
    expected = (weights - left).abs().sum(-1) / 2
    torch.testing.assert_close(pattern.divergence(evicted, "tv", keys=kept), expected)
    one, other = (
        regard.explain(p.problem.query, p.problem.key, p.problem.key) for p in (pattern, evicted)
    )
    torch.testing.assert_close(one.divergence(other, "tv", keys=kept), expected)
    assert bool(pattern.divergence(evicted, "kl", keys=kept).isinf().all())
    for wrong in (None, kept[..., :4], kept + 9, torch.zeros_like(kept)):
        with pytest.raises(ValueError, match="keys"):
            pattern.divergence(evicted, keys=wrong)
    with pytest.raises(ValueError, match="they must be the same"):
        pattern.divergence(evicted[0], keys=kept)
    with pytest.raises(TypeError, match="other must be a"):
        pattern.divergence(weights)


@pytest.mark.parametrize(("queries", "keys"), [(41, 53), (53, 41), (5, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_singular_values_are_those_of_the_matrix(queries, keys, dtype):
    size = torch.tensor([0.0, 1.0, 30.0])[
        :, None, None
    ]  # of rank one; smooth; nearly a permutation
    query, key = size * normal(2, 3, queries, 7), normal(2, 3, keys, 7, seed=1)
    pattern = regard.Pattern(query.to(dtype), key.to(dtype))
    expected = torch.linalg.svdvals(pattern.dense().double())[..., :4]
    tolerance = 1e-5 if dtype == torch.float32 else 1e-11
    result = pattern.singular_values(4)
    error = (result.double() - expected).abs() / expected[..., :1]
    assert result.dtype == dtype
    assert float(error.max()) < tolerance


def test_k_of_singular_values_has_bounds():
    pattern = regard.Pattern(torch.randn(2, 5, 3), torch.randn(2, 7, 3))
    assert pattern.singular_values(9).shape == (2, 5)
    with pytest.raises(ValueError, match="k must be at least 1, but is 0"):
        pattern.singular_values(0)


def test_steps_count_distances_to_later_keys_like_those_to_earlier_ones():
    """Without a mask; each weight is a third, and no query looks three or more tokens back."""
    query, key = torch.zeros(2, 1, 3, 2).unbind()
    steps = regard.explain(query, key, key)
    third, both = torch.full((), 1 / 3), torch.tensor([[1.0, 2 / 3, 1.0]])
    torch.testing.assert_close(steps.distance(), both, rtol=0, atol=1e-7)
    torch.testing.assert_close(steps.offsets(5)[0, :3], third.expand(3), rtol=0, atol=1e-7)
    assert steps.offsets(5)[0, 3:].tolist() == [0, 0]
