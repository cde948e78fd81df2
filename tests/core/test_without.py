"""Patterns without some keys: the weights of the others, renormalized."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.cases import cases
from support.cpu_paths import way
from support.draws import normal

import regard


def left(case, hidden):
    """The softmax of each row over the keys that are not hidden, and its sink; (B, H, L, S)."""
    logits = case.plain_logits().double()
    keys = case.visible.shape[-1]
    seen = case.visible & ~hidden[..., None, :]
    logits[..., :keys] = logits[..., :keys].masked_fill(~seen, -torch.inf)
    weights = torch.softmax(logits, -1)[..., :keys]
    return torch.where(seen, weights, 0)


@given(cases(), st.integers(0, 2), st.sampled_from([0.15, 0.6]), st.sampled_from([None, 20]))
def test_other_weights_are_those_of_a_softmax_without_the_keys(case, axes, share, block):
    batch, heads, _, keys = case.visible.shape
    shape = ((keys,), (heads, keys), (batch, heads, keys))[axes]
    hidden = normal(*shape, seed=keys) < torch.tensor(share).logit()
    with way(block):
        pattern = regard.Pattern(case.query, case.key, **case.options)
        result = pattern.without(hidden).dense()
        if axes == 0:
            index = hidden.nonzero()[:, 0].tolist()
            torch.testing.assert_close(pattern.without(index).dense(), result)
    # Scores are off by their rounding, in both, and weights by as much of their size.
    expected = left(case, hidden)
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=16 * case.rounding)


@pytest.mark.parametrize("runs", [1, 3, 16, 17, 40])
def test_any_number_of_keys_may_be_left_out_per_head(runs, instructions):
    query, key = normal(2, 6, 67, 19), normal(2, 3, 97, 19, seed=1)
    hidden = torch.zeros(6, 97, dtype=torch.bool)
    for head in range(6):
        hidden[head, (torch.arange(runs) * 2 + head) % 97] = True
    mask = regard.causal() & regard.masks.hide(11, heads=[0, 3])
    pattern = regard.Pattern(query, key, mask=mask).without(hidden)
    scores = (query @ key.repeat_interleave(3 - 1, 1).mT / 19**0.5).double()
    seen = mask.visible(67, 97, (2, 6)) & ~hidden[:, None]
    exact = torch.softmax(scores.masked_fill(~seen, -torch.inf), -1).nan_to_num(0)
    # Scores below 10 are off by some 1e-6, and weights by as much of their size.
    torch.testing.assert_close(pattern.dense().double(), exact, rtol=1e-5, atol=1e-6)
    received = pattern.received()
    torch.testing.assert_close(received.double(), exact.sum(-2), rtol=1e-5, atol=1e-5)
    assert pattern.verify() < 1e-6


def test_a_row_that_rests_keeps_its_digits():
    """0.99999 of each row is on key 0: lse + log(1 − Σα) would have no digits left."""
    query, key = normal(1, 3, 31, 17), normal(1, 3, 31, 17, seed=1)
    query[..., 0], key[..., 0], key[..., 0, 0] = 17**0.5, 0, 19.0
    pattern = regard.Pattern(query, key, mask=regard.causal())
    assert float(pattern[..., 1:, 0].min()) > 0.99999
    exact = regard.Pattern(query.double(), key.double(), mask=regard.causal()).without(0).dense()
    torch.testing.assert_close(pattern.without(0).dense().double(), exact, rtol=1e-5, atol=0)
    assert not bool(exact[..., 0, :].any())  # query 0 sees nothing else


def test_a_sink_logit_stays_unless_it_is_left_out_as_well():
    query, key, sink = normal(3, 5, 7), normal(3, 11, 7, seed=1), torch.tensor([1.0, 0.0, 5.0])
    pattern = regard.Pattern(query, key, sink=sink)
    alone = regard.Pattern(query, key[:, 2:])
    torch.testing.assert_close(
        pattern.without(slice(2), sink_logit=False).dense()[..., 2:], alone.dense()
    )
    kept = regard.Pattern(query, key[:, 2:], sink=sink)
    torch.testing.assert_close(pattern.without([0, 1]).dense()[..., 2:], kept.dense())


def test_keys_that_are_not_there_are_refused():
    pattern = regard.Pattern(torch.randn(2, 3, 5, 7), torch.randn(2, 3, 11, 7))
    with pytest.raises(IndexError, match="keys asks for 11, but there are only 0 to 10"):
        pattern.without(11)
    with pytest.raises(TypeError, match=r"must hold booleans, but is torch\.int64; list the"):
        pattern.without(torch.tensor([3]))
    with pytest.raises(ValueError, match=r"keys has shape \(2, 3, 5\), but holds one entry for"):
        pattern.without(torch.zeros(2, 3, 5, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"does not broadcast to \(2, 3, 1, 11\)"):
        pattern.without(torch.zeros(2, 11, dtype=torch.bool))
    with pytest.raises(TypeError, match="keys must be an integer, a slice or integers"):
        pattern.without("first")


@pytest.mark.parametrize("part", [(1,), (slice(None), 1), (1, slice(1, None))])
def test_keys_per_head_may_be_left_out_of_selected_heads(part):
    query, key = torch.randn(2, 2, 3, 29, 7).unbind()
    pattern = regard.Pattern(query, key, mask=regard.causal())
    left_out, factors = torch.rand(2, 3, 29) < 0.2, torch.rand(2, 3, 29)
    for selected, whole in (
        (pattern[part].without(left_out[part]), pattern.without(left_out)),
        (pattern[part].weighted(key=factors[part]), pattern.weighted(key=factors)),
    ):
        torch.testing.assert_close(selected.dense(), whole.dense()[part], rtol=0, atol=1e-6)
