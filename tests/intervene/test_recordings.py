"""What a recording holds of a changed run: the changed weights, exactly.

Axes: B batch, H query heads, L queries, S keys.
"""

import contextlib

import pytest
import torch
from intervene.test_generation import NEW, PROMPT, from_scratch, prompt
from intervene.test_patching import other_run, patch
from intervene.test_transformers import inputs, run
from record.models.classes import CASES
from support import edits as changes
from support.changed_attention import ChangedAttention, edit
from support.interception import encoder
from support.written_models import in_torch, transformers_model

import regard

EDITS = {
    "hide twice": changes.WEIGHTS["hide twice"],
    "hide whole rows": changes.WEIGHTS["hide whole rows"],
    "factors of heads": changes.HEADS["factors of heads"],
    "all together": changes.TOGETHER["all together"],
}
RUNS = [("gpt2", "sdpa"), ("llama", "eager"), ("mistral", "sdpa"), ("t5", "eager"), ("vit", "sdpa")]


def recorded(model, edits, call, *, inside=True, **options):
    """Record a run, with the recording inside of the intervention or around it."""
    with contextlib.ExitStack() as stack:
        if not inside:
            recording = stack.enter_context(regard.record(model, **options))
        change = stack.enter_context(regard.intervene(model))
        if inside:
            recording = stack.enter_context(regard.record(model, **options))
        for each in edits:
            each.state(change)
        call()
    return recording


def check(layer, exact):
    weights = layer.pattern.dense()
    torch.testing.assert_close(weights, exact, rtol=0, atol=1e-5)
    assert torch.equal(weights == 0, exact == 0)
    sums = layer.pattern.dense().double().sum(-1)
    empty = (exact == 0).all(-1)
    torch.testing.assert_close(sums, (~empty).double(), rtol=0, atol=1e-5)


@pytest.mark.each_once
@pytest.mark.parametrize("edits", EDITS.values(), ids=EDITS)
@pytest.mark.parametrize(("name", "how"), RUNS)
def test_weights_are_those_of_the_changed_run(name, how, edits):
    case, arguments = CASES[name], inputs(name)
    attention = ChangedAttention(edits)
    run(transformers_model(case, attention), arguments)
    model = case.build(how)
    pair = [
        recorded(model, edits, lambda: model(**arguments), inside=inside)
        for inside in (True, False)
    ]
    for inside, outside in zip(*(recording.layers for recording in pair), strict=True):
        assert torch.equal(inside.pattern.dense(), outside.pattern.dense())
        check(inside, attention.weights[inside.kind, inside.index])


@pytest.mark.parametrize(("name", "how"), [("gpt2", "sdpa"), ("llama", "eager")])
def test_patched_heads_are_recorded(name, how):
    recording, weights = other_run(name, how)
    edits = [
        patch(recording[1], weights["self", 1], layers=1, heads=[0, 4]),
        patch(recording[1], weights["self", 1], layers=1, heads=[3, 5], queries=slice(2, 6)),
        edit("knock_out", layers=1, keys=[2, 3], heads=[1, 2]),
    ]
    attention = ChangedAttention(edits)
    run(transformers_model(CASES[name], attention), inputs(name))
    model = CASES[name].build(how)
    actual = recorded(model, edits, lambda: model(**inputs(name)))
    for layer in actual.layers:
        exact = attention.weights["self", layer.index]
        torch.testing.assert_close(layer.pattern.dense(), exact, rtol=0, atol=2e-6)
        hidden = torch.zeros_like(exact).bool()
        hidden[:, [1, 2], :, 2:4] = layer.index == 1
        assert not layer.pattern.dense()[hidden].any()


@pytest.mark.parametrize("trained", [True, False])
def test_an_encoder_of_torch(trained):
    model, x = encoder().eval(), torch.randn(2, 7, 12)
    edits = [
        edit("knock_out", layers=1, keys=slice(2, 5), queries=slice(3, None), heads=[0, 3]),
        edit("steer", layers=1, keys=0, by=1.0),
        edit("ablate", layers=0, heads=1),
    ]
    attention = ChangedAttention(edits)
    with in_torch(attention):
        model(x)
    for inside in (True, False):
        with torch.set_grad_enabled(trained):
            recording = recorded(model, edits, lambda: model(x), inside=inside)
        for layer in recording.layers:
            check(layer, attention.weights["self", layer.index])


@pytest.mark.each_once
@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize(
    ("name", "how"), [("gpt2", "sdpa"), ("mistral", "sdpa"), ("llama", "eager")]
)
def test_a_generation_is_one_changed_pattern(name, how, cache):
    edits = [
        edit("knock_out", layers=1, keys=slice(2, 5), queries=slice(4, 10), heads=[0, 1]),
        edit("knock_out", layers=1, keys=8),
        edit("steer", layers=0, keys=slice(-3, -1), by=1.0, queries=-1),
        edit("steer", layers=0, keys=1, by=0.5, heads=3),
    ]
    attention = ChangedAttention(edits, prompt=PROMPT)
    from_scratch(transformers_model(CASES[name], attention), prompt())
    model = CASES[name].build(how)
    options = {} if cache is None else {"cache_implementation": cache}
    recording = recorded(
        model,
        edits,
        lambda: model.generate(
            prompt(), do_sample=False, max_new_tokens=NEW, eos_token_id=None, **options
        ),
    )
    assert len(recording) == 2
    for layer in recording.layers:
        check(layer, attention.weights["self", layer.index])


def test_readouts_are_of_the_changed_weights():
    model = CASES["llama"].build("sdpa")
    edits = changes.WEIGHTS["hide twice"] + changes.WEIGHTS["add"]
    recording = recorded(model, edits, lambda: model(**inputs("llama")))
    readings = recording.read(regard.readouts.Entropy(), regard.readouts.Received(), progress=False)
    for number, pattern in enumerate(recording):
        weights = pattern.dense().double()
        entropy = -torch.special.xlogy(weights, weights).sum(-1)
        for name, exact in (("entropy", entropy), ("received", weights.sum(-2))):
            values = readings[name].values[number].double()
            torch.testing.assert_close(values, exact, rtol=0, atol=1e-5)


def test_a_changed_recording_is_saved_and_loaded(tmp_path):
    model = CASES["llama"].build("sdpa")
    edits = [*changes.WEIGHTS["hide twice"], *changes.HEADS["add, then multiply"]]
    recording = recorded(model, edits, lambda: model(**inputs("llama")))
    recording.save(tmp_path / "changed")
    for one, other in zip(recording, regard.load(tmp_path / "changed"), strict=True):
        assert torch.equal(one.dense(), other.dense())
