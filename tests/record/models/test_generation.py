"""Generation with a key/value cache: one pattern a layer, grown row by row."""

import pytest
import torch
from record.models.classes import CASES
from record.models.inputs import Numbers

import regard
from regard.record import RecordError, read_while_running, use_in_transformers

PROMPT, NEW, PADDING = 8, 9, (0, 3)
LENGTH = PROMPT + NEW - 1  # the last token is never attended from
RUNS = [
    (name, how, cache)
    for name in ("gpt2", "llama", "mistral", "gemma2", "gpt_oss")
    for how in CASES[name].implementations
    for cache in (None, "static")
] + [("gemma3", "sdpa", "static"), ("llama4", "eager", None), ("cohere2", "sdpa", None)]


def prompt():
    torch.manual_seed(2)
    keep = torch.ones(len(PADDING), PROMPT, dtype=torch.int64)
    for sequence, count in zip(keep, PADDING, strict=True):
        sequence[:count] = 0
    return torch.randint(3, 101, keep.shape) * keep, keep


def generate(model, cache=None, new=NEW, **options):
    ids, keep = prompt()
    options = {"do_sample": False, "max_new_tokens": new, "min_new_tokens": new, **options}
    if cache is not None:
        options["cache_implementation"] = cache
    return model.generate(ids, attention_mask=keep, **options)


def full(case, ids):
    """Eager weights of a forward over the whole sequence, and which rows are of real tokens."""
    _, keep = prompt()
    keep = torch.nn.functional.pad(keep, (0, NEW - 1), value=1)
    positions = (keep.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        out = case.build("eager")(
            ids[:, :-1],
            attention_mask=keep,
            position_ids=positions,
            output_attentions=True,
            use_cache=False,
        )
    return out.attentions, keep.bool()


READOUTS = [
    regard.readouts.Received(),
    regard.readouts.Entropy(),
    regard.readouts.MaxScore(),
    regard.readouts.TopK(4),
]


@pytest.mark.each_once
@pytest.mark.parametrize(
    ("name", "cache"),
    [("llama", None), ("llama", "static"), ("mistral", None), ("mistral", "static")],
)
def test_reading_while_it_generates_is_reading_the_recording(name, cache):
    """With windows of a few tokens for mistral, and padding before a prompt."""
    model = CASES[name].build("sdpa")
    with regard.record(model) as recording, read_while_running(model, *READOUTS) as run:
        generate(model, cache)
    for reading, expected in zip(run.values(), recording.read(*READOUTS).values(), strict=True):
        assert reading.values.shape == expected.values.shape
        assert torch.equal(reading.values, expected.values), reading
    torch.testing.assert_close(
        run["received"].values[0], recording[0].received(), rtol=0, atol=1e-5
    )


@pytest.mark.each_once
@pytest.mark.parametrize(("name", "how", "cache"), RUNS)
def test_generation_is_one_pattern_a_layer(name, how, cache):
    case = CASES[name]
    model = case.build(how)
    expected = generate(model, cache)
    with regard.record(model) as recording:
        ids = generate(model, cache)
    assert torch.equal(ids, expected)
    assert {m.config._attn_implementation for m in model.modules() if hasattr(m, "config")} == {how}
    weights, real = full(case, ids)
    assert len(recording.layers) == len(recording) == len(weights) == 2
    for layer, weight in zip(recording.layers, weights, strict=True):
        assert list(layer.rows) == [*range(LENGTH)]
        assert layer.pattern.shape == weight.shape
        assert layer.pattern.problem.key.shape[1] == case.groups
        error = (layer.pattern.dense() - weight).abs().amax((1, 3))[real]
        assert error.max() < 1e-5


@pytest.mark.parametrize("how", ["eager", "sdpa"])
def test_a_static_cache_whose_prompt_has_no_padding(how):
    """There the mask of the replaced attention is a rule, which does not tell room from keys."""
    model, (ids, _) = CASES["llama"].build(how), prompt()
    options = {"do_sample": False, "max_new_tokens": 3, "min_new_tokens": 3}
    with regard.record(model) as recording:
        text = model.generate(ids[:1], cache_implementation="static", **options)
    with torch.no_grad():
        out = CASES["llama"].build("eager")(text[:, :-1], output_attentions=True)
    for pattern, weights in zip(recording, out.attentions, strict=True):
        torch.testing.assert_close(pattern.dense(), weights, rtol=0, atol=1e-5)


@pytest.mark.parametrize("how", ["eager", "sdpa"])
@pytest.mark.parametrize("length", [4, 5, 6])
def test_a_prompt_about_as_long_as_the_window_of_a_static_cache(how, length):
    """One of exactly 5 tokens attends to the cache's own buffer, which the next step overwrites."""
    model, (ids, _) = CASES["mistral"].build(how), prompt()
    options = {"do_sample": False, "max_new_tokens": 6, "min_new_tokens": 6}
    with regard.record(model) as recording:
        text = model.generate(ids[:1, :length], cache_implementation="static", **options)
    with torch.no_grad():
        out = CASES["mistral"].build("eager")(text[:, :-1], output_attentions=True, use_cache=False)
    assert len(recording) == 2
    for pattern, weights in zip(recording, out.attentions, strict=True):
        torch.testing.assert_close(pattern.dense(), weights, rtol=0, atol=1e-5)


@pytest.mark.each_once
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("cache", [None, "static"])
def test_without_a_model_and_in_inference_mode(cache, mode):
    model = CASES["mistral"].build("sdpa")
    with mode(), regard.record(model) as expected:
        generate(model, cache)
    with mode(), regard.record() as recording:
        generate(model, cache)
    assert [layer.name for layer in recording.layers] == [layer.name for layer in expected.layers]
    for ours, theirs in zip(recording, expected, strict=True):
        assert torch.equal(ours.dense(), theirs.dense())


@pytest.mark.parametrize("how", ["sdpa", "eager"])
def test_generation_without_a_cache_is_a_pattern_a_step(how):
    model = CASES["llama"].build(how)
    with regard.record(model) as recording:
        generate(model, new=3, use_cache=False)
    lengths = [layer.pattern.shape[-1] for layer in recording.layers]
    assert lengths == [8, 8, 9, 9, 10, 10]


@pytest.mark.parametrize("how", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "bart"])
def test_beam_search_is_refused(name, how):
    model = CASES[name].build(how)
    with pytest.raises(RecordError, match="beam search"), regard.record(model):
        generate(model, num_beams=3, new=12)


def test_a_second_generation_is_a_second_pattern():
    model = CASES["llama"].build("sdpa")
    with regard.record(model) as recording:
        generate(model, new=4)
        generate(model, new=6)
    assert [layer.pattern.shape[-1] for layer in recording.layers] == [11, 11, 13, 13]
    first, second = recording.layers[0], recording.layers[2]
    assert first.index == second.index == 0
    assert torch.equal(first.pattern.dense()[..., :8, :8], second.pattern.dense()[..., :8, :8])


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
def test_generation_for_good(name):
    case = CASES[name]
    expected = generate(case.build("eager"))
    model = case.build("eager")
    use_in_transformers()
    model.set_attn_implementation("regard")
    for cache in (None, "static"):
        with regard.record() as recording:
            ids = generate(model, cache)
        assert torch.equal(ids, expected)
        weights, real = full(case, ids)
        for pattern, weight in zip(recording, weights, strict=True):
            assert (pattern.dense() - weight).abs().amax((1, 3))[real].max() < 1e-5


def test_selected_rows_of_a_generation():
    model = CASES["llama"].build("sdpa")
    with regard.record(model) as everything:
        generate(model)
    with regard.record(model, rows=[-1], heads=[4], layers=1) as recording:
        generate(model)
    (layer,) = recording.layers
    assert (layer.index, layer.heads) == (1, (4,))
    assert list(layer.rows) == [*range(PROMPT - 1, LENGTH)]
    expected = everything[1].dense()[:, 4:5, PROMPT - 1 :]
    assert torch.equal(layer.pattern.dense(), expected)


def test_offloading_changes_no_weight():
    model = CASES["gemma2"].build("eager")
    with regard.record(model) as expected:
        generate(model, "static")
    with regard.record(model, offload="cpu") as recording:
        generate(model, "static")
    for ours, theirs in zip(recording, expected, strict=True):
        assert torch.equal(ours.dense(), theirs.dense())


@pytest.mark.parametrize("how", ["sdpa", "eager"])
def test_a_conversation_goes_on_from_a_cache(how):
    # Two calls by hand: the prompt in chunks, then single tokens.
    case = CASES["llama"]
    model = case.build(how)
    torch.manual_seed(2)
    ids = torch.randint(3, 101, (2, 13))
    with torch.no_grad(), regard.record(model) as recording:
        cache = None
        for chunk in ids.split([5, 4, 1, 1, 2], dim=-1):
            cache = model(chunk, past_key_values=cache, use_cache=True).past_key_values
    with torch.no_grad():
        weights = case.build("eager")(ids, output_attentions=True).attentions
    assert len(recording.layers) == 2
    for pattern, weight in zip(recording, weights, strict=True):
        assert pattern.shape == weight.shape
        assert (pattern.dense() - weight).abs().max() < 1e-5


@pytest.mark.each_once
@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("how", ["sdpa", "eager"])
def test_tokens_grow_with_the_pattern(how, cache):
    model = CASES["llama"].build(how)
    with regard.record(model, tokens=Numbers()) as recording:
        ids = generate(model, cache)
    assert recording.tokens == tuple(tuple(map(str, row)) for row in ids[:, :-1].tolist())
    assert len(regard.lens.heads(recording, progress=False).frame()) == 2 * 6


def test_tokens_of_a_prompt_in_chunks():
    model = CASES["llama"].build("sdpa")
    with regard.record(model, tokens=Numbers()) as recording:
        ids = generate(model, prefill_chunk_size=5)
    assert recording[0].shape[-2:] == (LENGTH, LENGTH)
    assert recording.tokens == tuple(tuple(map(str, row)) for row in ids[:, :-1].tolist())


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_a_prompt_in_chunks_is_one_pattern(name):
    case = CASES[name]
    for how in case.implementations:
        model = case.build(how)
        with regard.record(model) as recording:
            ids = generate(model, prefill_chunk_size=5)
        weights, real = full(case, ids)
        for pattern, weight in zip(recording, weights, strict=True):
            assert pattern.shape == weight.shape
            assert (pattern.dense() - weight).abs().amax((1, 3))[real].max() < 1e-5


def test_assisted_generation_is_refused():
    model = CASES["llama"].build("sdpa")
    ids = torch.tensor([[5, 7, 11, 5, 7, 11, 5, 7]])  # so that looking up finds candidates
    with pytest.raises(RecordError, match="assisted"), regard.record(model):
        model.generate(ids, do_sample=False, max_new_tokens=NEW, prompt_lookup_num_tokens=3)
