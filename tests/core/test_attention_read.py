"""Readouts taken with a context are bitwise those of its pattern, and the context is unchanged.

By the kernels, in their own pass; by every other way, after it.
"""

import pytest
import torch
from support.cpu_paths import EACH_SET, SETS, forced, streamed
from support.draws import normal
from support.patterns import flat

import regard
from regard.backends import native
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
    TopK,
)  # fmt: skip

READOUTS = (
    *(TopK(5), Entropy(), Received(), Max(), MaxScore(), Distance(), Lag(1), Offsets(9)),
    *(Mass([3, 50]), Image(13, 11), Received("max"), Received(queries=slice(-5, None))),
)
# Rows that fill no block, more than a block to read, and in the forward pass.
QUERIES, KEYS = 331, 409
KEEP = torch.arange(KEYS) < 311
CASES = {
    "causal": (regard.causal(), {}),
    "a window, whose rows begin anywhere": (regard.window(37), {}),
    "rows that see nothing": (regard.causal() & regard.padding(KEEP.flip(0)[None]), {}),
    "a softcap, for which scores are adjusted": (regard.causal(), {"softcap": 3.0}),
    "log-sum-exps that are imprecise": (regard.causal(), {"scale": 40.0}),
    "a sink": (None, {"sink": torch.tensor([1.0, 2.0])}),
    "spans": (regard.causal() & regard.masks.hide([5, 300], [7, 250]), {}),
}


def tensors(groups=2, dtype=torch.float32):
    return [
        normal(3, heads, length, size, seed=seed).to(dtype)
        for seed, (heads, length, size) in enumerate(
            [(2, QUERIES, 17), (groups, KEYS, 17), (groups, KEYS, 13)]
        )
    ]


def assert_same_bits(query, key, value, readouts=READOUTS, **options):
    context, pattern = regard.attention_with_pattern(query, key, value, **options)
    apart = pattern.read(*readouts)
    own, together = regard.attention(query, key, value, read=readouts, **options)
    torch.testing.assert_close(own, context, rtol=0, atol=0, equal_nan=True)
    assert len(together) == len(apart)
    for readout, one, other in zip(readouts, together, apart, strict=True):
        for a, b in zip(flat([one]), flat([other]), strict=True):
            torch.testing.assert_close(
                a, b, rtol=0, atol=0, equal_nan=True, msg=lambda m, r=readout: f"{r}: {m}"
            )


@pytest.mark.parametrize("name", EACH_SET)
@pytest.mark.parametrize("case", CASES)
def test_results_are_bitwise_those_of_two_calls(case, name):
    mask, options = CASES[case]
    with forced(name):
        assert_same_bits(*tensors(), mask=mask, **options)
        options = {"mask": mask, **options}
        context = regard.attention(*tensors(), read=[Entropy()], **options)[0]
        assert torch.equal(context, regard.attention(*tensors(), **options))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_results_are_bitwise_those_of_two_calls_in_every_dtype(dtype):
    assert_same_bits(*tensors(dtype=dtype), mask=regard.causal())


# With the forward of heads that share keys: where sums over rows are those of each head alone.
OF_HEADS_THAT_SHARE_KEYS = {
    "sums over rows": (Received(), Received("mean"), Image(13, 11), TopK(5), Entropy()),
    "largest": (Received("max"), Blocks(7, 9, "max"), Max(), MaxScore()),
    "sums along diagonals": READOUTS,
    "of rows alone": (TopK(5), Entropy(), Distance(), Mass([3, 50]), Lag(1)),
}


@pytest.mark.each_once
@pytest.mark.parametrize("name", EACH_SET)
@pytest.mark.parametrize("what", OF_HEADS_THAT_SHARE_KEYS)
@pytest.mark.parametrize("heads", [2, 3, 4, 8])
def test_heads_that_share_keys(heads, what, name):
    readouts = OF_HEADS_THAT_SHARE_KEYS[what]
    query = normal(2, 2 * heads, QUERIES, 17, seed=heads)
    key, value = (t[:2] for t in tensors()[1:])
    with forced(name):
        for case in (
            "causal",
            "a window, whose rows begin anywhere",
            "a softcap, for which scores are adjusted",
        ):
            mask, options = CASES[case]
            assert_same_bits(query, key, value, readouts, mask=mask, **options)
        for length in (5, 13, 47):  # a block holds rows of several heads
            short = query[:, :, :length], key, value
            assert_same_bits(*short, readouts, mask=regard.causal())


def test_a_readout_that_is_requested_twice():
    cut = Blocks(7, 9)
    twice = regard.attention(*tensors(), mask=regard.causal(), read=[cut, Entropy(), cut])[1]
    assert torch.equal(twice[0], twice[2])
    assert_same_bits(*tensors(), [cut, Entropy(), cut], mask=regard.causal())


@pytest.mark.parametrize("heads", [3, 4, 5, 8])
def test_a_head_alone_and_beside_those_that_share_its_keys(heads):
    query, key, value = normal(2, heads, QUERIES, 17), *(t[:2, :1] for t in tensors()[1:])
    options = {"mask": regard.window(101), "read": READOUTS}
    context, together = regard.attention(query, key, value, **options)
    for head in range(heads):
        own, alone = regard.attention(query[:, head, None], key, value, **options)
        assert torch.equal(own[:, 0], context[:, head])
        for one, other in zip(flat(alone), flat(together), strict=True):
            assert torch.equal(one[:, 0], other[:, head])


# Where a block holds rows of several heads, whose keys end elsewhere, contexts are other sums.
@pytest.mark.parametrize("length", [13, 31])
@pytest.mark.parametrize("heads", [2, 4])
def test_a_head_of_few_queries_alone_and_beside_those_that_share_its_keys(heads, length):
    query, key, value = normal(2, heads, length, 17), *(t[:2, :1] for t in tensors()[1:])
    readouts = OF_HEADS_THAT_SHARE_KEYS["sums over rows"]
    together = regard.attention(query, key, value, read=readouts)[1]
    for head in range(heads):
        alone = regard.attention(query[:, head, None], key, value, read=readouts)[1]
        for one, other in zip(flat(alone), flat(together), strict=True):
            assert torch.equal(one[:, 0], other[:, head])


def test_a_nan_propagates_to_both():
    query, key, value = tensors()
    key[0, :, 100, 3] = torch.nan
    assert_same_bits(query, key, value, mask=regard.causal())


def test_more_keys_than_stored_scores():
    """The last keys' scores are computed twice, whether the log-sum-exps are known or not."""
    keys = 65_536 + 700
    query, key = normal(67, 3, seed=1), normal(keys, 3, seed=2)
    readouts = (Entropy(), TopK(3), Received(), Max())
    assert_same_bits(query, key, key, readouts)
    unknown = regard.Pattern(query, key).read(*readouts)
    known = regard.attention(query, key, key, read=readouts)[1]
    for one, other in zip(flat(unknown), flat(known), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_gradients_flow_through_the_context():
    query, key, value = (t.requires_grad_() for t in tensors())
    context, (entropy,) = regard.attention(
        query, key, value, mask=regard.causal(), read=[Entropy()]
    )
    assert context.requires_grad
    assert not entropy.requires_grad
    with torch.no_grad():
        _, (alone,) = regard.attention(query, key, value, mask=regard.causal(), read=[Entropy()])
    assert torch.equal(entropy, alone)


def test_readouts_are_taken_before_dropout():
    query, key, value = tensors()
    options = {"mask": regard.causal(), "read": [Received()]}
    dropped, (received,) = regard.attention(
        query, key, value, dropout=0.5, generator=torch.Generator().manual_seed(3), **options
    )
    context, (plain,) = regard.attention(query, key, value, **options)
    assert not torch.equal(dropped, context)
    assert torch.equal(received, plain)


def test_without_kernels():
    with streamed():
        assert_same_bits(*tensors(), mask=regard.causal())


def test_a_recording_sees_the_call():
    query, key, value = tensors()
    with regard.record() as recording:
        _, (entropy,) = regard.attention(query, key, value, mask=regard.causal(), read=[Entropy()])
    assert len(recording) == 1
    torch.testing.assert_close(recording[0].entropy(), entropy, rtol=0, atol=1e-5)


@pytest.mark.skipif(not SETS, reason="needs the kernels")
def test_the_kernels_compute_both_in_one_call(monkeypatch):
    monkeypatch.setattr(native, "read", lambda *_: pytest.fail("a second pass"))
    regard.attention(*tensors(), mask=regard.causal(), read=[Entropy(), Received(), TopK(3)])


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (Entropy(), r"read must be a list of readouts.*Entropy"),
        ("entropy", "read must be a list of readouts.*'entropy'"),
        ([3], "3 is not a readout"),
    ],
)
def test_anything_but_a_list_of_readouts_is_refused(read, message):
    with pytest.raises(TypeError, match=message):
        regard.attention(*tensors(), read=read)
