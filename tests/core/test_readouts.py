"""Every readout against its definition, loop by loop, on the oracle's weights."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.cases import cases
from support.cpu_paths import streamed, way
from support.own_readout import SquaredWeights
from support.patterns import assert_definitions, defined_readouts, flat

import regard
from regard.pattern.readouts import Entropy, Image, Offsets, Received, TopK

# By the kernels, or streamed with so many scores in a block: many blocks, and one.
BLOCKS = st.sampled_from([None, 10, 60, 300, 2**20])
ALL = (TopK(3), *defined_readouts(4, slice(1, 3))[:-1], Image(3, 2))


@given(cases(), BLOCKS, st.integers(1, 9), st.data())
def test_every_readout_is_its_definition(case, block, size, data):
    keys = case.key.shape[-2]
    marked = data.draw(st.lists(st.integers(-keys, keys - 1), max_size=4))
    readouts = (TopK(size), *defined_readouts(size, marked))
    with way(block):
        pattern = regard.Pattern(case.query, case.key, **case.options)
        top, *results = pattern.read(*readouts)
        again = flat(pattern.read(*readouts))  # now that the log-sum-exp is known
        dense = pattern.dense()
    assert {result.dtype for result in results} == {case.exact_dtype}
    tolerance = assert_definitions(case, size, marked, results)
    torch.testing.assert_close(dense.double(), case.exact.weights, **tolerance)
    for result, other in zip(again, flat([top, *results]), strict=True):
        if result.is_floating_point():
            torch.testing.assert_close(result, other, rtol=1e-5, atol=float(tolerance["atol"]))

    k = min(size, keys)
    assert top.weights.shape == top.positions.shape == (*case.visible.shape[:3], k)
    count = case.visible.sum(-1, keepdim=True)
    actual = torch.arange(k) < count  # a row that sees fewer than k keys says so
    assert torch.equal(top.positions >= 0, actual)
    assert bool((top.positions[~actual] == -1).all())
    assert not bool(top.weights[~actual].any())
    assert bool((top.weights.diff(dim=-1) <= 0).all())
    best = case.exact.weights.masked_fill(~case.visible, 0).sort(-1, descending=True).values
    torch.testing.assert_close(top.weights.double(), best[..., :k], **tolerance)
    at = case.exact.weights.gather(-1, top.positions.clamp_min(0)).masked_fill(~actual, 0)
    torch.testing.assert_close(top.weights.double(), at, **tolerance)
    assert bool(case.visible.gather(-1, top.positions.clamp_min(0))[actual].all())
    distinct = [row[row >= 0].unique().numel() for row in top.positions.flatten(0, -2)]
    assert distinct == actual.sum(-1).flatten().tolist()


@given(cases(dtypes=[torch.float32, torch.bfloat16]), BLOCKS)
def test_one_pass_equals_separate_passes(case, block):
    with way(block):
        together = regard.Pattern(case.query, case.key, **case.options).read(*ALL)
        alone = [regard.Pattern(case.query, case.key, **case.options).read(r)[0] for r in ALL]
    for one, other in zip(flat(together), flat(alone), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("known", [False, True])
def test_methods_are_the_readouts(known):
    query, key = torch.randn(2, 6, 5, 4), torch.randn(2, 3, 7, 4)
    pattern = regard.Pattern(query, key, mask=regard.causal())
    if known:
        assert pattern.logsumexp.shape == (2, 6, 5)
    top, most, entropy, received, distance, offsets, mass, image = pattern.read(*ALL)
    assert torch.equal(pattern.topk(3).positions, top.positions)
    assert torch.equal(pattern.topk(3).weights, top.weights)
    assert torch.equal(pattern.max(), most)
    assert torch.equal(pattern.entropy(), entropy)
    assert torch.equal(pattern.received(), received)
    assert torch.equal(pattern.distance(), distance)
    assert torch.equal(pattern.offsets(4), offsets)
    assert torch.equal(pattern.mass(slice(1, 3)), mass)
    assert torch.equal(pattern.image(3, 2), image)
    assert pattern.image().shape == (2, 6, 5, 7)


@pytest.mark.parametrize("length", [255, 256, 257])
def test_sizes_around_those_of_blocks(length):
    """Lengths about a block of 256 rows, and rows about a block of one."""
    query, key = (torch.randn(2, length, 5).double() for _ in range(2))
    mask = regard.causal() & regard.window(100)
    whole = regard.Pattern(query, key, mask=mask).read(*ALL)
    for block in (256 * length, 32 * length, 32 * length - 1, 256 * length + 1):
        with streamed(block):
            in_blocks = regard.Pattern(query, key, mask=mask).read(*ALL)
        for one, other in zip(flat(in_blocks), flat(whole), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_readouts_of_heads_with_known_roles():
    """One head looks at the previous token, one at the first, one everywhere."""
    length = 11
    previous = torch.eye(length).roll(-1, 0)
    previous[0], previous[-1] = torch.eye(length)[0], torch.eye(length)[-2]
    previous = torch.eye(length)[[0, *range(length - 1)]]
    first = torch.eye(length)[[0] * length]
    weights = torch.stack([previous, first, torch.ones(length, length)])
    bias = (weights.log()).clamp_min(-80.0)
    pattern = regard.Pattern(
        torch.zeros(3, length, 1), torch.zeros(3, length, 1), mask=regard.causal(), bias=bias
    )
    offsets = pattern.offsets(3)
    torch.testing.assert_close(offsets[0], torch.tensor([1 / 11, 1.0, 0.0]))
    assert pattern.topk(1).positions[1, :, 0].tolist() == [0] * length
    rows = torch.arange(length).float()
    torch.testing.assert_close(pattern.entropy()[2], (rows + 1).log())
    torch.testing.assert_close(pattern.max()[2], 1 / (rows + 1))
    torch.testing.assert_close(pattern.distance()[1], rows)
    torch.testing.assert_close(pattern.distance()[2], rows / 2)
    torch.testing.assert_close(pattern.received()[1, 0], torch.tensor(float(length)))
    torch.testing.assert_close(pattern.mass(0)[1], torch.ones(length))
    torch.testing.assert_close(pattern.mass(range(length))[2], torch.ones(length))


def test_topk_ranks_weights_too_small_to_tell_apart():
    """Far below the smallest float32, logarithms still give the order."""
    bias = torch.tensor([0.0, -300.0, -200.0, -400.0])
    pattern = regard.Pattern(torch.zeros(1, 2), torch.zeros(4, 2), bias=bias)
    top = pattern.topk(4)
    assert top.positions.tolist() == [[0, 2, 1, 3]]
    assert top.weights.tolist() == [[1, 0, 0, 0]]


KEYS = [2, -1, slice(1, 4), slice(None), [0, 3], [], torch.tensor([5, 5, 1]), range(3)]


@pytest.mark.parametrize("keys", KEYS, ids=str)
def test_mass_takes_keys_in_many_forms(keys):
    pattern = regard.Pattern(torch.randn(3, 5, 4), torch.randn(3, 7, 4))
    index = (
        list(dict.fromkeys(keys.tolist() if isinstance(keys, torch.Tensor) else keys))
        if not isinstance(keys, (int, slice))
        else keys
    )
    expected = pattern.dense()[..., index].reshape(3, 5, -1).sum(-1)
    torch.testing.assert_close(pattern.mass(keys), expected)


def test_mass_takes_booleans():
    pattern = regard.Pattern(torch.randn(3, 5, 4), torch.randn(3, 4, 4))
    chosen = torch.tensor([True, False, False, True])
    torch.testing.assert_close(pattern.mass(chosen), pattern.dense()[..., chosen].sum(-1))


@pytest.mark.parametrize("keys", [0.5, [1.0, 2.0], slice(0, 1.5), torch.tensor([0.5]), "keys"])
def test_mass_takes_only_numbers(keys):
    with pytest.raises(TypeError, match=r"keys|data type 'str'"):
        regard.readouts.Mass(keys)


@pytest.mark.parametrize("keys", [9, -8, [0, 7], torch.ones(6, dtype=torch.bool)], ids=str)
def test_mass_refuses_what_is_no_key(keys):
    pattern = regard.Pattern(torch.randn(5, 4), torch.randn(7, 4))
    with pytest.raises(ValueError, match="keys does not index 7 keys"):
        pattern.mass(keys)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TopK(0), "k must be at least 1, but is 0"),
        (lambda: Offsets(0), "n must be at least 1, but is 0"),
        (lambda: Image(0, 3), "an image needs a size, but rows=0, columns=3"),
    ],
)
def test_sizes_below_one_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_only_readouts_are_accepted():
    pattern = regard.Pattern(torch.randn(5, 4), torch.randn(7, 4))
    with pytest.raises(TypeError, match="'entropy' is not a readout"):
        pattern.read("entropy")
    assert pattern.read() == ()


@pytest.mark.parametrize("known", [False, True])
def test_a_user_defined_readout_is_read_with_the_others(known):
    query, key = torch.randn(2, 6, 5, 4), torch.randn(2, 3, 7, 4)
    pattern = regard.Pattern(query, key, mask=regard.causal())
    if known:
        assert pattern.logsumexp.shape == (2, 6, 5)
    received, squares, entropy = pattern.read(Received(), SquaredWeights(), Entropy())
    assert torch.equal(received, pattern.received())
    torch.testing.assert_close(squares, pattern.dense().square().sum(-1))
    with streamed(20):
        torch.testing.assert_close(pattern.read(SquaredWeights())[0], squares)
    assert torch.equal(entropy, pattern.entropy())
