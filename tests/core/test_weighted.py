"""Weights times factors: what weights move, and their odds, against the definition in float64."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.cases import cases
from support.cpu_paths import way
from support.draws import normal
from support.patterns import flat

import regard
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

FORMS = ("key", "dot", "both", "odds", "odds of both")
READOUTS = (
    *(TopK(3), Received(), Received("mean", slice(1, None)), Received("sum", (0, -1), True)),
    *(Offsets(4), Mass([0, -1]), Lag(1), Blocks(3, 2), Image(4, 3)),
)


def factors(case, form):
    """A key's factors and a dot product's tensors, as `weighted` takes them."""
    batch, heads, queries, keys = case.visible.shape
    groups = case.key.shape[1]
    some = normal(batch, heads, keys, seed=3)
    dot = normal(batch, heads, queries, 5, seed=4), normal(batch, groups, keys, 5, seed=5)
    given = {"key": {"key": some}, "dot": {"dot": dot}, "odds": {}}
    return given.get(form, {"key": some, "dot": dot})


def in_place_of_weights(case, form, weights):
    """The matrix written out, (B, H, L, S)."""
    given, group = factors(case, form), weights.shape[1] // case.key.shape[1]
    if form.startswith("odds"):
        weights = weights / (1 - weights)
    if "key" in given:
        weights = weights * given["key"].double()[..., None, :]
    if "dot" in given:
        one, other = (t.double() for t in given["dot"])
        weights = weights * (one @ other.repeat_interleave(group, 1).mT)
    return torch.where(case.visible, weights, 0)


def pattern_of(case, form):
    pattern, given = regard.Pattern(case.query, case.key, **case.options), factors(case, form)
    pattern = pattern.odds() if form.startswith("odds") else pattern
    return pattern.weighted(**given) if given else pattern


@given(cases(), st.sampled_from(FORMS), st.sampled_from([None, 20, 300]))
def test_every_readout_is_that_of_the_matrix_written_out(case, form, block):
    exact = in_place_of_weights(case, form, case.exact.weights)
    queries, keys = exact.shape[-2:]
    sure = exact.isfinite().all(-1).all(-1)  # heads in which no row sees a key alone
    # A weight is off by the rounding of its score, relative to its size; 1 − w by that of w.
    size = float(exact[sure].abs().max()) if exact[sure].numel() else 0.0
    tolerance = 64 * case.rounding * (1 + size) ** (2 if "odds" in form else 1)
    with way(block):
        pattern = pattern_of(case, form)
        dense = pattern.dense().double()
        torch.testing.assert_close(dense[sure], exact[sure], rtol=0, atol=tolerance)
        torch.testing.assert_close(pattern[..., -1, :].double(), dense[..., -1, :])
        part = pattern[0, :, :, keys // 2 :].double()
        torch.testing.assert_close(part, dense[0, :, :, keys // 2 :], rtol=1e-4, atol=1e-5)
        inputs = (t.double() for t in (case.query, case.key, case.value))
        steps = regard.explain(*inputs, **case.options)
        steps = steps.odds() if form.startswith("odds") else steps
        steps = steps.weighted(**factors(case, form)) if factors(case, form) else steps
        torch.testing.assert_close(
            steps.entries.double()[sure], exact[sure], rtol=0, atol=tolerance
        )
        readouts = (*READOUTS, Spans([j % 3 - 1 for j in range(keys)], 2))
        for readout, result in zip(readouts, pattern.read(*readouts), strict=True):
            if isinstance(readout, TopK):
                entries, positions = result
                ranked = exact.abs().masked_fill(~case.visible, -1).topk(min(3, keys))
                found = ranked.values.clamp(min=0)
                error = (entries.double().abs() - found).abs()[sure]
                assert not error.numel() or float(error.max()) <= tolerance
                chosen = exact.gather(-1, positions.clamp(min=0)).masked_fill(positions < 0, 0)
                torch.testing.assert_close(
                    entries.double()[sure], chosen[sure], rtol=0, atol=tolerance
                )
                assert torch.equal(positions < 0, ranked.values < 0)
                continue
            wanted = by_steps(steps, readout)
            kept = sure
            if getattr(readout, "grouped", False):
                kept = sure.unflatten(1, (case.key.shape[1], -1)).all(-1)
            if isinstance(readout, Lag):  # the logarithm of an entry near 0 has no digits
                wanted = wanted[0]
            found = result.weights if isinstance(readout, Lag) else result
            torch.testing.assert_close(
                found[kept].double(),
                wanted[kept].double(),
                rtol=1e-4,
                atol=tolerance * max(queries, keys) * (exact.shape[1] // kept.shape[1]),
                msg=lambda m, r=readout: f"{r}: {m}",
            )
        x, y = normal(keys, 3, seed=6).double(), normal(2, queries, seed=7).double()
        for one, other in ((pattern @ x, exact @ x), (y @ pattern, y @ exact)):
            torch.testing.assert_close(
                one.double()[sure], other[sure], rtol=0, atol=4 * tolerance * max(queries, keys)
            )


def by_steps(steps, readout):
    name = type(readout).__name__.lower()
    unknown = {Spans: ("n",), Lag: ("key_positions", "query_positions")}.get(type(readout), ())
    options = {key: value for key, value in vars(readout).items() if key not in unknown}
    result = getattr(steps, name)(**options)
    if not isinstance(readout, Spans):
        return result
    return torch.nn.functional.pad(result, (0, readout.n - result.shape[-1]))


@pytest.mark.parametrize("lengths", [(1, 1), (67, 131), (260, 96)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernels_of_each_instruction_set_are_exact(instructions, lengths, dtype):
    queries, keys = lengths
    query, key = normal(2, 6, queries, 19).to(dtype), normal(2, 2, keys, 19, seed=1).to(dtype)
    dot = normal(2, 6, queries, 13, seed=2), normal(2, 2, keys, 13, seed=3)
    numbers = normal(2, 6, keys, seed=4)
    mask = regard.causal() & regard.masks.hide(slice(3, 40), heads=[0, 3])
    readouts = (TopK(5), Received(), Received("mean"), Image(9, 7), Offsets(3), Mass([0]))
    patterns = (
        regard.Pattern(query, key, mask=mask),
        regard.Pattern(query.double(), key.double(), mask=mask),
    )
    for factors_of in ({"key": numbers}, {"dot": dot}, {"key": numbers, "dot": dot}):
        results, exact = (pattern.weighted(**factors_of).read(*readouts) for pattern in patterns)
        for one, other in zip(flat(results), flat(exact), strict=True):
            # Scores below 10 are off by some 1e-6, and entries below 30 by as much of their size.
            torch.testing.assert_close(one.double(), other.double(), rtol=1e-5, atol=2e-4)
    sharp = regard.Pattern(4 * query, key), regard.Pattern(4 * query.double(), key.double())
    results, exact = (pattern.odds().topk(2) for pattern in sharp)
    finite = exact.weights.isfinite()
    # The logarithm of odds is a difference of two scores below 40.
    torch.testing.assert_close(
        results.weights.double()[finite], exact.weights[finite], rtol=1e-4, atol=0
    )


def test_odds_keep_their_digits_where_a_head_rests():
    """Of a weight of 0.999999 float32 leaves two digits of 1 − w."""
    query, key = normal(3, 31, 17), normal(3, 31, 17, seed=1)
    query[..., 0], key[..., 0], key[..., 0, 0] = 17**0.5, 0, 19.0
    dot = normal(3, 31, 5, seed=2), normal(3, 31, 5, seed=3)
    pattern = regard.Pattern(query, key, mask=regard.causal())
    assert float(pattern[:, 1:, 0].min()) > 0.9999
    exact = regard.Pattern(query.double(), key.double(), mask=regard.causal()).odds()
    for block in (None, 20):
        with way(block):
            odds = pattern.odds()
            assert bool(odds[:, 0, 0].isinf().all())  # there is no other key
            # The logarithms are of scores up to 20, off by some 1e-6.
            torch.testing.assert_close(odds[:, 1:].double(), exact[:, 1:], rtol=2e-5, atol=0)
            moved, wanted = (o.weighted(dot=dot)[:, 1:, 0] for o in (odds, exact))
            torch.testing.assert_close(moved.double(), wanted, rtol=5e-5, atol=1e-3)
    scores = (query.double() @ key.double().mT / 17**0.5)[:, 5, :6]
    others = scores[:, 1:].logsumexp(-1)
    torch.testing.assert_close(exact[:, 5, 0], (scores[:, 0] - others).exp())


def test_knocking_out_a_link_changes_the_context_by_its_odds():
    query, key, value = normal(3, 2, 13, 7).double()
    mask, link = regard.causal(), (9, 4)
    context, pattern = regard.attention_with_pattern(query, key, value, mask=mask)
    cut = regard.causal() & regard.masks.hide(link[1], queries=link[0])
    without = regard.attention(query, key, value, mask=cut)
    odds = pattern.odds()[:, link[0], link[1]][:, None]
    change = odds * (context[:, link[0]] - value[:, link[1]])
    torch.testing.assert_close(without[:, link[0]] - context[:, link[0]], change)


def test_the_entropy_is_that_of_shares():
    query, key = normal(2, 3, 13, 7)
    pattern, numbers = regard.Pattern(query, key, mask=regard.causal()), normal(13, seed=1).abs()
    numbers[3] = 0
    entropy = pattern.weighted(key=numbers).entropy()
    entries = pattern.dense().double() * numbers
    shares = entries / entries.sum(-1, keepdim=True)
    exact = -torch.special.xlogy(shares, shares).sum(-1)
    torch.testing.assert_close(entropy.double(), exact, rtol=1e-5, atol=1e-6)
    steps = regard.explain(query, key, key, mask=regard.causal()).weighted(key=numbers)
    torch.testing.assert_close(steps.entropy(), entropy)
    with pytest.raises(regard.Error, match="entropy of a row with a negative entry is not def"):
        pattern.weighted(key=-numbers).entropy()


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_hidden_key_never_touches_a_result_and_a_visible_one_does(number):
    query, key = normal(2, 3, 13, 7)
    numbers = torch.ones(13)
    numbers[5] = number
    pattern = regard.Pattern(query, key, mask=regard.causal())
    moved = pattern.weighted(key=numbers)
    torch.testing.assert_close(moved[:, :5], pattern[:, :5])
    assert not bool(moved[:, 5:, 5].isfinite().any())
    assert bool(moved[:, 5:, :5].isfinite().all())
    hidden = regard.Pattern(query, key, mask=regard.causal() & regard.masks.hide(5))
    for readout in (Received(), Image(13, 13), TopK(3), Mass([5])):
        one, other = (p.read(readout) for p in (hidden.weighted(key=numbers), hidden))
        for a, b in zip(flat(one), flat(other), strict=True):
            torch.testing.assert_close(a, b)


def test_a_nan_in_a_key_is_that_of_its_rows(instructions):
    x = normal(67, 7)
    x[3], mask = math.nan, regard.causal() & regard.window(5)
    numbers = normal(67, seed=1)
    for readout in (TopK(3), Received(), Image(6, 6)):
        one, exact = (
            regard.Pattern(y, y, mask=mask).weighted(key=numbers).read(readout)
            for y in (x, x.double())
        )
        for a, b in zip(flat(one), flat(exact), strict=True):
            assert torch.equal(a.isnan(), b.isnan()) or a.dtype == torch.int64


def test_parts_and_forms():
    query, key = normal(2, 6, 13, 7), normal(2, 3, 17, 7, seed=1)
    dot = normal(2, 6, 13, 5, seed=2), normal(2, 6, 17, 5, seed=3)  # of each query head
    pattern = regard.Pattern(query, key, mask=regard.causal())
    moved = pattern.weighted(dot=dot)
    dense = moved.dense()
    torch.testing.assert_close(dense, pattern.dense() * (dot[0] @ dot[1].mT))
    torch.testing.assert_close(moved[1, 4].dense(), dense[1, 4])
    torch.testing.assert_close(moved[1].received(), dense[1].sum(-2))
    torch.testing.assert_close(moved.crop((2, 9), (3, 11)).dense(), dense[..., 2:9, 3:11])
    odds = pattern.odds()
    torch.testing.assert_close(odds.crop((2, 9), (3, 11)).dense(), odds.dense()[..., 2:9, 3:11])
    torch.testing.assert_close(
        moved.image(5, 5, keys=(3, 11)), moved.crop(keys=(3, 11)).image(5, 5)
    )
    for part in ((1, 4), (slice(None), 4), (1, slice(1, None, 3)), (slice(None), slice(1, 6, 3))):
        given = dot[0][part], dot[1][part]
        torch.testing.assert_close(pattern[part].weighted(dot=given).dense(), dense[part])
    again = pattern.weighted(key=torch.arange(17.0)).weighted(dot=dot)
    torch.testing.assert_close(again.dense(), dense * torch.arange(17.0), rtol=1e-4, atol=1e-5)
    singular = moved.singular_values(2)
    torch.testing.assert_close(singular, torch.linalg.svdvals(dense)[..., :2], rtol=1e-4, atol=1e-4)
    assert moved.to("cpu").verify() < 2e-6 > odds.verify()
    with pytest.raises(ValueError, match="this pattern is weighted by dot already"):
        moved.weighted(dot=dot)
    without = pattern.without(0).weighted(key=torch.arange(17.0))
    assert float(without.dense()[..., 0].abs().max()) == 0


def test_what_does_not_fit_is_refused():
    pattern = regard.Pattern(torch.randn(2, 6, 5, 7), torch.randn(2, 3, 11, 7))
    with pytest.raises(ValueError, match="give a factor: key=, one number per key, or dot="):
        pattern.weighted()
    with pytest.raises(ValueError, match=r"key has shape \(5,\), but holds one entry for each of"):
        pattern.weighted(key=torch.ones(5))
    with pytest.raises(TypeError, match=r"key is torch\.int64"):
        pattern.weighted(key=torch.arange(11))
    with pytest.raises(TypeError, match="dot must be two tensors"):
        pattern.weighted(dot=torch.ones(5))
    one, other = torch.randn(2, 6, 5, 3), torch.randn(2, 3, 11, 3)
    with pytest.raises(ValueError, match=r"dot\[0\] has shape \(6, 5, 3\), but the pattern's"):
        pattern.weighted(dot=(one[0], other))
    with pytest.raises(ValueError, match=r"dot\[1\] has shape \(2, 3, 11, 2\), but needs 11 keys"):
        pattern.weighted(dot=(one, other[..., :2]))
    with pytest.raises(ValueError, match="rows must be at least 1, but is 0"):
        pattern.odds().verify(0)
    moved = pattern.weighted(dot=(one, other))
    for readout in (Max(), MaxScore(), Distance(), Received("max"), Blocks(2, 2, "max")):
        with pytest.raises(regard.Error, match="has no meaning for weights times factors"):
            moved.read(readout)
    with pytest.raises(regard.Error, match="negative entry"):
        moved.read(Entropy())
