"""Which calls of a generation belong together, and which are refused."""

import pytest
import torch
from record.models.classes import CASES
from support.caches import (
    CAUSAL,
    LOWER,
    PROMPT,
    STEPWISE,
    Attend,
    B,
    D,
    H,
    T,
    close,
    exact,
    grown,
    sequence,
)
from torch import nn
from transformers import DynamicCache

import regard
from regard.record import RecordError


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
def test_layers_and_each_use_of_a_shared_layer_have_a_pattern_each(calls):
    model = Model(max(calls) + 1, calls=calls)
    inputs = [sequence() for _ in calls]
    with regard.record(model) as recording:
        generate(model, inputs)
    assert [layer.name for layer in recording.layers] == [f"layers.{n}" for n in calls]
    assert [layer.index for layer in recording.layers] == list(range(len(calls)))
    visible = CAUSAL.clone()
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
    assert [actual.index for actual in recording.layers] == [0, 0, 0]
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


def test_batches_of_another_size_start_a_new_pattern():
    layer, (query, key) = Attend(), sequence(PROMPT)
    with regard.record(layer) as recording:
        layer(query, key, is_causal=True)
        layer(query[:1], key[:1], is_causal=True)
    assert [pattern.shape[0] for pattern in recording] == [B, 1]


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


@pytest.mark.parametrize("size", [T + 7, T])
@pytest.mark.parametrize("count", [2, 3])
def test_several_tokens_after_a_cropped_cache_are_refused(count, size):
    """As a conversation does that takes its last answer back, with a cache that grows or not."""
    layer, (query, key), past = Attend(), sequence(T), T - 4
    cache = torch.cat([key[..., :past, :], torch.randn(B, H, size - past, D)], dim=-2)
    visible = LOWER[past : past + count, :size]
    with (  # noqa: PT012 - the last call alone raises
        pytest.raises(RecordError, match=r"5 keys from a cache.* not the 9 .*cropped"),
        regard.record(layer),
    ):
        grown(layer, query, key, STEPWISE)
        layer(query[..., :count, :], cache, attn_mask=visible)


@pytest.mark.parametrize("count", [1, 2])
def test_a_cropped_cache_of_transformers_is_refused(count):
    model, ids, cache = CASES["llama"].build("sdpa"), torch.randint(3, 101, (1, 11)), DynamicCache()
    with torch.no_grad(), pytest.raises(RecordError, match="cropped"), regard.record(model):  # noqa: PT012 - the last call alone raises
        model(ids, past_key_values=cache)
        cache.crop(-3)
        model(ids[:, :count], past_key_values=cache)


def test_runs_over_one_prefix_from_elsewhere_have_their_own_rows():
    """As with trained prefixes: neither run continues the other."""
    layer, prefix, sizes = Attend(), torch.randn(B, H, 5, D), (3, 7, 2, 1)
    runs = [sequence(size) for size in sizes]
    with regard.record(layer) as recording:
        for (query, key), size in zip(runs, sizes, strict=True):
            keys = torch.cat([prefix, key], dim=-2)
            layer(query, keys, attn_mask=LOWER[5 : 5 + size, : 5 + size])
    assert [list(one.rows) for one in recording.layers] == [[*range(size)] for size in sizes]
    for pattern, (query, key), size in zip(recording, runs, sizes, strict=True):
        keys = torch.cat([prefix, key], dim=-2)
        close(pattern, exact(query, keys, visible=LOWER[5 : 5 + size, : 5 + size]))


@pytest.mark.parametrize(("queries", "sizes"), [(3, (7, 10, 5)), (1, (7, 7, 7)), (1, (7, 5))])
def test_learned_queries_over_other_inputs_are_runs_of_their_own(queries, sizes):
    """Latents over longer inputs, and a query that pools, stand among no keys of a cache."""
    layer, query = Attend(), torch.randn(B, H, queries, D)
    inputs = [torch.randn(B, H, size, D) for size in sizes]
    with regard.record(layer) as recording:
        for key in inputs:
            layer(query, key)
    assert len(recording) == len(inputs)
    for pattern, key in zip(recording, inputs, strict=True):
        close(pattern, exact(query, key, visible=torch.ones(queries, key.shape[-2]).bool()))


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
    (pattern,) = recording
    close(pattern, exact(query, key)[..., PROMPT:, :])
