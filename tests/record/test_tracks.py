"""Generation with a cache: calls that go on become one pattern, and nothing else does.

The caches are written by hand, as models have them. Weights of a step are held against those of
the whole computation; float32 with head dimensions below 10 keeps errors below 1e-6.
"""

import contextlib
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard.record import RecordError

B, H, D = 2, 3, 4
PROMPT, STEPS = 5, 4
T = PROMPT + STEPS


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def exact(query, key, *, visible=None):
    scores = query.double() @ key.double().mT * query.shape[-1] ** -0.5
    if visible is None:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return torch.softmax(scores.masked_fill(~visible, -math.inf), -1).nan_to_num(0)


def close(pattern, weights):
    assert pattern.shape == weights.shape
    torch.testing.assert_close(pattern.dense().double(), weights, rtol=0, atol=1e-6)


class Attend(nn.Module):
    """A layer that is handed query, key and value, so that tests write the cache themselves."""

    def forward(self, query, key, value=None, **options):
        return F.scaled_dot_product_attention(
            query, key, key if value is None else value, **options
        )


def sequence(length=T):
    return torch.randn(2, B, H, length, D).unbind()


def chunks(*sizes):
    edges = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    return list(itertools.pairwise(edges))


STEPWISE = chunks(PROMPT, *[1] * STEPS)


# Caches that grow by concatenation


def grown(layer, query, key, parts):
    """Feed a sequence in parts; each later part sees the cache and itself, causally."""
    cache = key[..., :0, :]
    for start, stop in parts:
        cache = torch.cat([cache, key[..., start:stop, :]], dim=-2)
        mask = torch.arange(stop) <= torch.arange(start, stop)[:, None]
        layer(query[..., start:stop, :], cache, attn_mask=mask)


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
        layer(query[..., :PROMPT, :], key[..., :PROMPT, :], is_causal=True)
        for t in range(PROMPT, T):
            layer(query[..., t : t + 1, :], key[..., : t + 1, :])
    (pattern,) = recording.attentions
    close(pattern, exact(query, key))


@pytest.mark.parametrize("groups", [1, 3])
def test_grouped_heads(groups):
    layer, query, key = Attend(), torch.randn(B, 6, T, D), torch.randn(B, groups, T, D)
    with regard.record(layer) as recording:
        layer(query[..., :PROMPT, :], key[..., :PROMPT, :], is_causal=True, enable_gqa=True)
        for t in range(PROMPT, T):
            layer(query[..., t : t + 1, :], key[..., : t + 1, :], enable_gqa=True)
    (pattern,) = recording.attentions
    close(pattern, exact(query, key.repeat_interleave(6 // groups, 1)))
    assert pattern.parts()[0].key.shape[1] == groups


def test_a_padded_prompt():
    """The shorter sequence of the batch is padded on the left."""
    layer, (query, key) = Attend(), sequence()
    keep = torch.ones(B, T, dtype=torch.bool)
    keep[0, :2] = False
    visible = keep[:, None, None] & torch.ones(T, T, dtype=torch.bool).tril()
    with regard.record(layer) as recording:
        for start, stop in STEPWISE:
            rows = slice(start, stop)
            layer(query[..., rows, :], key[..., :stop, :], attn_mask=visible[..., rows, :stop])
    (pattern,) = recording.attentions
    close(pattern, exact(query, key, visible=visible))


def test_biases_of_each_step_are_put_together():
    layer, (query, key), bias = Attend(), sequence(), torch.randn(H, T, T)
    visible = torch.ones(T, T, dtype=torch.bool).tril()
    added = bias.masked_fill(~visible, -math.inf)
    with regard.record(layer) as recording:
        for start, stop in STEPWISE:
            rows = slice(start, stop)
            layer(query[..., rows, :], key[..., :stop, :], attn_mask=added[:, rows, :stop])
    (pattern,) = recording.attentions
    scores = query.double() @ key.double().mT / 2 + added.double()
    close(pattern, torch.softmax(scores, -1))


def test_masks_with_gaps_of_some_steps_are_put_together():
    layer, (query, key) = Attend(), sequence()
    visible = torch.ones(T, T, dtype=torch.bool).tril()
    visible[PROMPT + 1, 2] = False
    with regard.record(layer) as recording:
        for start, stop in STEPWISE:
            rows = slice(start, stop)
            layer(query[..., rows, :], key[..., :stop, :], attn_mask=visible[rows, :stop])
    (pattern,) = recording.attentions
    close(pattern, exact(query, key, visible=visible))


def test_the_pattern_may_be_looked_at_between_steps():
    layer, (query, key) = Attend(), sequence()
    with regard.record(layer) as recording:
        for start, stop in STEPWISE:
            visible = torch.ones(T, T, dtype=torch.bool).tril()[start:stop, :stop]
            layer(query[..., start:stop, :], key[..., :stop, :], attn_mask=visible)
            close(recording[0], exact(query[..., :stop, :], key[..., :stop, :]))
            before = recording[0]
    assert recording[0] is before, "the pattern of a track that no longer grows is made once"


def test_a_pattern_taken_early_stays_what_it_was():
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


# Buffers of fixed size


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


def test_a_static_buffer_that_is_full_at_once():
    """Nothing is known of room there: the buffer itself may be kept, and writing to it is seen."""
    layer, (query, key) = Attend(), sequence()
    with regard.record(layer) as recording:
        cache = static(layer, query, key, T, chunks(T))
    close(recording[0], exact(query, key))
    cache.add_(1)
    with contextlib.suppress(RecordError):
        close(recording[0], exact(query, key))


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
    visible = torch.ones(T, T, dtype=torch.bool).tril().triu(1 - size)
    close(recording[0], exact(query, key, visible=visible))


# Cross-attention


class Cross(nn.Module):
    def __init__(self):
        super().__init__()
        self.cross_attn = Attend()

    def forward(self, *args, **options):
        return self.cross_attn(*args, **options)


def test_a_source_that_stays():
    model, query, source = Cross(), torch.randn(B, H, STEPS, D), torch.randn(B, H, 7, D)
    with regard.record(model) as recording:
        for t in range(STEPS):
            model(query[..., t : t + 1, :], source.clone())
    (layer,) = recording.layers
    assert layer.kind == "cross"
    assert list(layer.rows) == list(range(STEPS))
    close(layer.pattern, exact(query, source, visible=torch.ones(STEPS, 7, dtype=torch.bool)))


def test_a_source_with_padding_that_stays():
    model, query, source = Cross(), torch.randn(B, H, STEPS, D), torch.randn(B, H, 7, D)
    keep = torch.ones(B, 1, 1, 7, dtype=torch.bool)
    keep[0, ..., 5:] = False
    with regard.record(model) as recording:
        for t in range(STEPS):
            model(query[..., t : t + 1, :], source, attn_mask=keep)
    (pattern,) = recording.attentions
    close(pattern, exact(query, source, visible=keep.expand(B, 1, STEPS, 7)))


def test_another_source_begins_anew():
    model, query = Cross(), torch.randn(B, H, 1, D)
    with regard.record(model) as recording:
        for _ in range(2):
            model(query, torch.randn(B, H, 7, D))
    assert [list(layer.rows) for layer in recording.layers] == [[0], [0]]
    assert [layer.index for layer in recording.layers] == [0, 0]


# Models


class Model(nn.Module):
    """Layers with a cache each; one of them may be shared, called twice in a pass."""

    def __init__(self, layers, *, calls=None):
        super().__init__()
        self.layers = nn.ModuleList(Attend() for _ in range(layers))
        self.calls = list(range(layers)) if calls is None else calls

    def forward(self, step):
        for time, layer in enumerate(self.calls):
            self.layers[layer](*step(time))


def generate(model, inputs):
    for start, stop in STEPWISE:

        def step(time, start=start, stop=stop):
            query, key = inputs[time]
            return query[..., start:stop, :], key[..., :stop, :]

        model(step)


@pytest.mark.parametrize("calls", [[0, 1, 2], [0, 0, 1, 0], [0, 0]])
def test_layers_and_shared_layers_have_a_track_each(calls):
    model = Model(max(calls) + 1, calls=calls)
    inputs = [sequence() for _ in calls]
    with regard.record(model) as recording:
        generate(model, inputs)
    assert [layer.name for layer in recording.layers] == [f"layers.{n}" for n in calls]
    assert [layer.index for layer in recording.layers] == list(range(len(calls)))
    visible = torch.ones(T, T, dtype=torch.bool).tril()
    visible[:PROMPT, :PROMPT] = True  # the prompt goes without a mask here
    for pattern, (query, key) in zip(recording, inputs, strict=True):
        close(pattern, exact(query, key, visible=visible))


def test_runs_that_do_not_go_on_are_recordings_of_their_own():
    layer = Attend()
    runs = [sequence(PROMPT) for _ in range(3)]
    with regard.record(layer) as recording:
        for query, key in runs:
            layer(query, key, is_causal=True)
    assert len(recording) == 3
    assert [found.index for found in recording.layers] == [0, 0, 0]
    for pattern, (query, key) in zip(recording, runs, strict=True):
        close(pattern, exact(query, key))


def test_two_generations_in_one_recording():
    layer, runs = Attend(), [sequence(), sequence()]
    with regard.record(layer) as recording:
        for query, key in runs:
            grown(layer, query, key, STEPWISE)
    assert len(recording) == 2
    for pattern, (query, key) in zip(recording, runs, strict=True):
        close(pattern, exact(query, key))


def test_the_same_prompt_again_is_a_run_of_its_own():
    layer, (query, key) = Attend(), sequence(PROMPT)
    with regard.record(layer) as recording:
        for _ in range(2):
            layer(query, key, is_causal=True)
    assert [pattern.shape[-2] for pattern in recording] == [PROMPT, PROMPT]


def test_batches_of_another_size_begin_anew():
    layer, (query, key) = Attend(), sequence(PROMPT)
    with regard.record(layer) as recording:
        layer(query, key, is_causal=True)
        layer(query[:1], key[:1], is_causal=True)
    assert [pattern.shape[0] for pattern in recording] == [B, 1]


# What is refused


def step(layer, query, cache):
    layer(query[..., -1:, :], cache)


def test_a_reordered_cache_is_refused():
    """As beam search does with the sequences of a batch."""
    layer, (query, key) = Attend(), sequence(PROMPT + 1)
    with (  # noqa: PT012 - the last call alone raises
        pytest.raises(RecordError, match=r"reordered \(beam search\).*num_beams=1"),
        regard.record(layer),
    ):
        layer(query[..., :PROMPT, :], key[..., :PROMPT, :], is_causal=True)
        cache = key.clone()
        cache[..., :PROMPT, :] = key[..., :PROMPT, :].flip(0)
        step(layer, query, cache)


def test_a_reordered_cache_late_in_a_generation_is_refused():
    layer, (query, key) = Attend(), sequence(T + 1)
    with pytest.raises(RecordError, match="reordered"), regard.record(layer):  # noqa: PT012 - the last call alone raises
        grown(layer, query[..., :T, :], key[..., :T, :], STEPWISE)
        cache = key.clone()
        cache[..., :T, :] = key[..., :T, :].flip(0)
        step(layer, query, cache)


def test_a_cropped_cache_is_refused():
    """As assisted generation does with keys of tokens that it takes back."""
    layer, (query, key) = Attend(), sequence(T + 1)
    with pytest.raises(RecordError, match="cropped"), regard.record(layer):  # noqa: PT012 - the last call alone raises
        grown(layer, query[..., :T, :], key[..., :T, :], STEPWISE)
        step(layer, query, torch.cat([key[..., : T - 3, :], key[..., -1:, :]], dim=-2))


def test_a_changed_key_in_the_cache_is_refused():
    layer, (query, key) = Attend(), sequence(PROMPT + 1)
    with pytest.raises(RecordError, match="not the 5 recorded"), regard.record(layer):  # noqa: PT012 - the last call alone raises
        layer(query[..., :PROMPT, :], key[..., :PROMPT, :].clone(), is_causal=True)
        key[1, 2, 3, 0] += 1e-3
        step(layer, query, key)


def test_a_cache_made_outside_the_recording_has_its_own_rows():
    layer, (query, key) = Attend(), sequence()
    with regard.record(layer) as recording:
        for t in range(PROMPT, T):
            layer(query[..., t : t + 1, :], key[..., : t + 1, :])
    (pattern,) = recording.attentions
    close(pattern, exact(query, key)[..., PROMPT:, :])


# What happens to the tensors afterwards


@pytest.mark.parametrize("which", ["query", "key"])
@pytest.mark.parametrize("offload", [None, "cpu"])
def test_a_tensor_that_is_written_to_afterwards(which, offload):
    layer, (query, key) = Attend(), sequence(PROMPT)
    query, key = query.clone(), key.clone()
    weights = exact(query, key)
    with regard.record(layer, offload=offload) as recording:
        layer(query, key, is_causal=True)
    close(recording[0], weights)
    {"query": query, "key": key}[which].add_(1)
    if offload is not None:
        close(recording[0], weights)
        return
    for look in (lambda: recording[0], lambda: recording.layers[0].pattern, recording.heads):
        with pytest.raises(RecordError, match=r"written to after.*offload='cpu'"):
            look()


@pytest.mark.parametrize("offload", [None, "cpu"])
def test_storage_that_is_freed_afterwards(offload):
    layer, (query, key) = Attend(), sequence(PROMPT)
    query, key = query.clone(), key.clone()
    weights = exact(query, key)
    with regard.record(layer, offload=offload) as recording:
        layer(query, key, is_causal=True)
    key.untyped_storage().resize_(0)
    if offload is not None:
        close(recording[0], weights)
        return
    with pytest.raises(RecordError, match=r"were freed after.*offload='cpu'"):
        recording[0].dense()


def test_storage_that_is_freed_between_steps():
    layer, (query, key) = Attend(), sequence()
    with regard.record(layer) as recording:
        for start, stop in STEPWISE:
            cache = key[..., :stop, :].clone()
            visible = torch.ones(T, T, dtype=torch.bool).tril()[start:stop, :stop]
            layer(query[..., start:stop, :].clone(), cache, attn_mask=visible)
            if start > 0:  # the first is compared with
                cache.untyped_storage().resize_(0)
    close(recording[0], exact(query, key))


def test_parts_of_a_projection_are_copied_out_of_it():
    """q, k and v cut out of one tensor would keep all of it, and change with it."""
    layer, joint = Attend(), torch.randn(B, PROMPT, 3, H, D)
    query, key, value = joint.transpose(1, 3).unbind(2)
    weights = exact(query, key)
    with regard.record(layer) as recording:
        layer(query, key, value, is_causal=True)
    problem, _ = recording[0].parts()
    for kept in (problem.query, problem.key):
        assert kept.untyped_storage().nbytes() == kept.numel() * 4
    joint.zero_()
    close(recording[0], weights)


def test_a_query_that_is_written_to_in_a_later_step():
    layer, (query, key) = Attend(), sequence()
    pieces = []
    with regard.record(layer) as recording:
        for start, stop in STEPWISE:
            pieces.append(query[..., start:stop, :].clone())
            visible = torch.ones(T, T, dtype=torch.bool).tril()[start:stop, :stop]
            layer(pieces[-1], key[..., :stop, :].clone(), attn_mask=visible)
    pieces[-1].add_(1)
    with contextlib.suppress(RecordError):
        close(recording[0], exact(query, key))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_buffers_of_either_mode(mode):
    """A scratch buffer that each step's query is written into."""
    layer, (query, key) = Attend(), sequence()
    with mode(), regard.record(layer) as recording:
        scratch = torch.empty(B, H, 1, D)
        cache = torch.zeros(B, H, T, D)
        for t in range(T):
            scratch.copy_(query[..., t : t + 1, :])
            cache[..., t : t + 1, :] = key[..., t : t + 1, :]
            layer(scratch, cache[..., : t + 1, :])
    with contextlib.suppress(RecordError):
        close(recording[0], exact(query, key))
