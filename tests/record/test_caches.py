"""Calls that go on from a key/value cache become one pattern."""

import math

import pytest
import torch
from support.caches import (
    CAUSAL,
    PROMPT,
    STEPWISE,
    Attend,
    B,
    D,
    Decoder,
    H,
    T,
    causal_prompt,
    chunks,
    close,
    decoded,
    exact,
    grown,
    sequence,
)
from torch import nn

import regard
from regard.masks.hiding import add_to_scores
from regard.record import RecordError


@pytest.mark.parametrize(
    "parts", [STEPWISE, chunks(4, 3, 2), chunks(1, *[1] * 6), chunks(3, 1, 3, 1, 1), chunks(T)]
)
def test_a_cache_that_grows(parts):
    layer, (query, key) = Attend(), sequence(parts[-1][1])
    with regard.record(layer) as recording:
        grown(layer, query, key, parts)
    assert len(recording) == 1
    close(recording[0], exact(query, key))
    assert list(recording.layers[0].rows) == list(range(parts[-1][1]))


def test_a_cache_that_grows_as_models_write_it():
    """A causal prompt, then steps that see all there is without a mask."""
    layer, (query, key) = Attend(), sequence()
    with regard.record(layer) as recording:
        causal_prompt(layer, query, key)
    (pattern,) = recording
    close(pattern, exact(query, key))


@pytest.mark.parametrize("groups", [1, 3])
def test_grouped_heads(groups):
    layer, query, key = Attend(), torch.randn(B, 6, T, D), torch.randn(B, groups, T, D)
    with regard.record(layer) as recording:
        causal_prompt(layer, query, key, enable_gqa=True)
    (pattern,) = recording
    close(pattern, exact(query, key.repeat_interleave(6 // groups, 1)))
    assert pattern.problem.key.shape[1] == groups


class Own(nn.Module):
    """A layer of this package's attention, whose mask hides and shifts spans of keys."""

    def forward(self, query, key, mask):
        return regard.attention(query, key, key, mask=mask)


def test_spans_of_each_step_are_put_together():
    """Those of the first rows are fewer than those of later ones, and in other heads."""
    layer, (query, key) = Own(), sequence()
    mask = (
        regard.causal()
        & regard.masks.hide(2, queries=[3, 7])
        & regard.masks.hide([1, 4], queries=slice(PROMPT, None), heads=0)
        & add_to_scores(0.7, slice(0, 3), queries=slice(4, 8))
    )
    with regard.record(layer) as recording:
        for start, stop in STEPWISE:
            layer(query[..., start:stop, :], key[..., :stop, :], mask)
    (pattern,) = recording
    visible, added = CAUSAL.repeat(H, 1, 1), torch.zeros(T, T)
    visible[:, [3, 7], 2] = False
    visible[0, PROMPT:, [1, 4]] = False
    added[4:8, :3] = 0.7
    scores = query.double() @ key.double().mT / 2 + added
    close(pattern, torch.softmax(scores.masked_fill(~visible, -math.inf), -1))


def test_spans_are_counted_from_the_keys_that_a_call_has():
    layer, (query, key), size = Own(), sequence(), 4
    with regard.record(layer) as recording:
        for t in range(T):
            first = max(0, t + 1 - size)
            layer(
                query[..., t : t + 1, :], key[..., first : t + 1, :], regard.masks.hide(slice(1, 2))
            )
    (pattern,) = recording
    visible = CAUSAL.triu(1 - size)
    for t in range(1, T):
        visible[t, max(0, t + 1 - size) + 1] = False
    close(pattern, exact(query, key, visible=visible))


@pytest.mark.parametrize("other", [2, 3])
def test_calls_that_hide_other_keys_are_other_patterns(other):
    layer, (query, key) = nn.Module(), sequence()
    masks = [regard.causal() & regard.masks.hide(n, queries=slice(5, None)) for n in (2, other)]
    layer.forward = lambda: [regard.attention(query, key, key, mask=mask) for mask in masks]
    with regard.record(layer) as recording:
        layer()
    assert len(recording) == len({2, other})


def test_a_padded_prompt():
    """The shorter sequence of the batch is padded on the left."""
    layer, (query, key) = Attend(), sequence()
    keep = torch.ones(B, T, dtype=torch.bool)
    keep[0, :2] = False
    visible = keep[:, None, None] & CAUSAL
    with regard.record(layer) as recording:
        grown(layer, query, key, STEPWISE, visible)
    (pattern,) = recording
    close(pattern, exact(query, key, visible=visible))


def test_biases_of_each_step_are_put_together():
    layer, (query, key), bias = Attend(), sequence(), torch.randn(H, T, T)
    added = bias.masked_fill(~CAUSAL, -math.inf)
    with regard.record(layer) as recording:
        grown(layer, query, key, STEPWISE, added)
    (pattern,) = recording
    scores = query.double() @ key.double().mT / 2 + added.double()
    close(pattern, torch.softmax(scores, -1))


def test_masks_with_gaps_of_some_steps_are_put_together():
    layer, (query, key) = Attend(), sequence()
    visible = CAUSAL.clone()
    visible[PROMPT + 1, 2] = False
    with regard.record(layer) as recording:
        grown(layer, query, key, STEPWISE, visible)
    (pattern,) = recording
    close(pattern, exact(query, key, visible=visible))


def test_the_pattern_can_be_read_between_steps():
    layer, (query, key) = Attend(), sequence()
    with regard.record(layer) as recording:
        for start, stop in STEPWISE:
            mask = CAUSAL[start:stop, :stop]
            layer(query[..., start:stop, :], key[..., :stop, :], attn_mask=mask)
            close(recording[0], exact(query[..., :stop, :], key[..., :stop, :]))
            before = recording[0]
    assert recording[0] is before, "the pattern of a track that no longer grows is made once"


def test_a_pattern_read_early_does_not_change():
    layer, (query, key) = Attend(), sequence()
    with regard.record(layer) as recording:
        grown(layer, query, key, chunks(PROMPT, 1, 1))
        early = recording[0]
        weights = early.dense().double()
        stop = PROMPT + 3
        layer(query[..., stop - 1 : stop, :], key[..., :stop, :])
    assert torch.equal(early.dense().double(), weights)


@pytest.mark.parametrize("leading", [(), (H,), (2, B, H)])
def test_other_leading_dimensions(leading):
    layer, (query, key) = Attend(), torch.randn(2, *leading, T, D).unbind()
    with regard.record(layer) as recording:
        grown(layer, query, key, STEPWISE)
    close(recording[0], exact(query, key))


def static(layer, query, key, size, parts=STEPWISE, *, fill=math.nan, mask="bool"):
    """A buffer written in place; a mask hides its room."""
    cache = torch.full((B, H, size, D), 0.0 if math.isnan(fill) else fill)
    for start, stop in parts:
        cache[..., start:stop, :] = key[..., start:stop, :]
        visible = torch.arange(size) <= torch.arange(start, stop)[:, None]
        if mask == "float":
            visible = torch.zeros(visible.shape).masked_fill(~visible, -math.inf)
        layer(query[..., start:stop, :], cache, attn_mask=visible)
    return cache


@pytest.mark.parametrize("size", [T, T + 7])
@pytest.mark.parametrize("mask", ["bool", "float"])
@pytest.mark.parametrize("parts", [STEPWISE, chunks(3, 4, 2), chunks(1, *[1] * 6)])
def test_a_static_buffer(size, mask, parts):
    length = parts[-1][1]
    layer, (query, key) = Attend(), sequence(length)
    with regard.record(layer) as recording:
        cache = static(layer, query, key, size, parts, mask=mask, fill=9.0)
    cache.fill_(7.0)
    assert len(recording) == 1
    close(recording[0], exact(query, key)[..., :length])


@pytest.mark.parametrize("room", [0.0, 9.0])  # as it was allocated, or used before
def test_a_static_buffer_whose_mask_is_a_rule(room):
    """As HF's static cache with the masks of this package, which write no matrix."""
    layer, (query, key) = Own(), sequence()
    cache = torch.full((B, H, 13, D), room)
    with regard.record(layer) as recording:
        for start, stop in STEPWISE:
            cache[..., start:stop, :] = key[..., start:stop, :]
            layer(query[..., start:stop, :], cache, regard.causal(offset=start))
            close(recording[0], exact(query[..., :stop, :], key[..., :stop, :]))
    assert len(recording) == 1


def test_prefixes_of_several_lengths_make_patterns_of_their_own():
    layer, (query, key) = Own(), sequence()
    prefixes = [torch.randn(B, H, size, D) for size in (0, 3, 5)]
    with regard.record(layer) as recording:
        for prefix in prefixes:
            layer(query[..., :4, :], torch.cat([prefix, key[..., :4, :]], dim=-2), regard.causal())
    assert [layer.pattern.shape[-1] for layer in recording.layers] == [4, 7, 9]


def test_a_static_buffer_that_is_full_at_once():
    """Nothing is known of room there: the buffer was written to before, and is copied."""
    layer, (query, key) = Attend(), sequence()
    with regard.record(layer) as recording:
        cache = static(layer, query, key, T, chunks(T))
    cache.add_(1)
    close(recording[0], exact(query, key))


def rolled_in_place(layer, query, key, size, *, buffer=None):
    """A buffer that the prompt fills, whose keys move on by one at each step, as models write it.

    Args:
        layer, query, key: as elsewhere.
        size: of the window and of the prompt.
        buffer: None is one that the prompt is written into.
    """
    visible = CAUSAL[:size, :size]
    if buffer is None:
        buffer = torch.zeros(B, H, size, D)
        buffer.copy_(key[..., :size, :])
    layer(query[..., :size, :], buffer, attn_mask=visible)
    for t in range(size, T):
        buffer.copy_(torch.cat([buffer[..., 1:, :], key[..., t : t + 1, :]], dim=-2))
        layer(query[..., t : t + 1, :], buffer)


@pytest.mark.parametrize("size", [2, PROMPT, T - 1])
def test_a_rolling_buffer_that_the_prompt_fills(size):
    layer, (query, key) = Attend(), sequence()
    with regard.record(layer) as recording:
        rolled_in_place(layer, query, key, size)
    (pattern,) = recording
    close(pattern, exact(query, key, visible=CAUSAL.triu(1 - size)))


def test_a_rolling_buffer_that_is_the_prompt_itself():
    """Not written to before the first step, it is kept as it is; the error says what happened."""
    layer, (query, key) = Attend(), sequence()
    prompt = key[..., :PROMPT, :] + 0
    with (
        pytest.raises(RecordError, match=r"written to after.*offload='cpu'"),
        regard.record(layer),
    ):
        rolled_in_place(layer, query, key, PROMPT, buffer=prompt)
    with regard.record(layer, offload="cpu") as recording:
        rolled_in_place(layer, query, key, PROMPT, buffer=key[..., :PROMPT, :] + 0)
    close(recording[0], exact(query, key, visible=CAUSAL.triu(1 - PROMPT)))


def rolling(query, key, size):
    """A buffer of the last keys, as of a sliding window; the prompt is longer than it."""
    layer = Attend()
    with regard.record(layer) as recording:
        visible = torch.ones(PROMPT, PROMPT, dtype=torch.bool).tril().triu(1 - size)
        layer(query[..., :PROMPT, :], key[..., :PROMPT, :], attn_mask=visible)
        cache = key[..., max(0, PROMPT - size) : PROMPT, :].clone()
        for t in range(PROMPT, T):
            cache = torch.cat([cache, key[..., t : t + 1, :]], dim=-2)[..., -size:, :]
            layer(query[..., t : t + 1, :], cache)
    return recording


@pytest.mark.parametrize("size", [2, 3, 5, 6, 8])
def test_a_rolling_buffer(size):
    query, key = sequence()
    recording = rolling(query, key, size)
    assert len(recording) == 1
    visible = CAUSAL.triu(1 - size)
    close(recording[0], exact(query, key, visible=visible))


@pytest.mark.parametrize(
    ("parts", "cross_first"),
    [
        (STEPWISE, False),
        (chunks(5, 1, 1, 2), False),
        (chunks(1, *[1] * 6), False),
        (STEPWISE, True),  # as in Idefics
    ],
)
def test_a_source_that_stays(parts, cross_first):
    """Each step has the next queries of both kinds of attention, over all keys of the source."""
    (query, key), source, length = sequence(), torch.randn(B, H, 7, D), parts[-1][1]
    model = Decoder(cross_first=cross_first)
    with regard.record(model) as recording:
        decoded(model, query, key, source, parts)
    (layer,) = recording.of_kind("cross").layers
    assert list(layer.rows) == list(range(length))
    everything = torch.ones(length, 7, dtype=torch.bool)
    close(layer.pattern, exact(query[..., :length, :], source, visible=everything))


def test_a_source_with_padding_that_stays():
    (query, key), source, model = sequence(), torch.randn(B, H, 7, D), Decoder()
    keep = torch.ones(B, 1, 1, 7, dtype=torch.bool)
    keep[0, ..., 5:] = False
    with regard.record(model) as recording:
        decoded(model, query, key, source, STEPWISE, attn_mask=keep)
    (pattern,) = recording.of_kind("cross")
    close(pattern, exact(query, source, visible=keep.expand(B, 1, T, 7)))


def test_another_source_starts_a_new_pattern():
    (query, key), model = sequence(2), Decoder()
    with regard.record(model) as recording:
        for stop in (1, 2):
            source = torch.randn(B, H, 7, D)
            decoded(model, query, key, source, [(stop - 1, stop)])
    layers = recording.of_kind("cross").layers
    assert [list(layer.rows) for layer in layers] == [[0], [0]]
    assert [layer.index for layer in layers] == [0, 0]
