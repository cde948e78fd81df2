"""The weights of another run in the place of a run's own, against attention written out.

Axes: B batch, H query heads, L positions.
"""

import itertools

import pytest
import torch
import transformers as hf
from intervene.test_generation import NEW, PROMPT, from_scratch, prompt
from intervene.test_transformers import inputs, run
from record.models.classes import CASES
from support.changed_attention import ChangedAttention, Edit, edit, masked_softmax
from support.edits import changed
from support.gpt_variants import VARIANTS
from support.interception import Stack
from support.written_models import in_our_gpt, in_torch, transformers_model

import regard
from regard.gpt import GPT

OTHERS = {
    "alone": (),
    "beside others": (
        edit("knock_out", layers=1, keys=[2, 3], heads=[0, 3]),
        edit("steer", layers=1, keys=slice(1, 4), heads=0, by=1.0),
        edit("ablate", layers=1, heads=5, by="mean"),
        edit("temper", layers=0, by=0.5),
        edit("ablate", layers=0, heads=1),
    ),
}
PLACES = {
    "a head": {"heads": 1},
    "heads": {"heads": [1, 2, 4]},
    "a sequence": {"heads": slice(1, 3), "batch": 1},
}


def runs():
    """Each place, alone and beside others, in each model, and in each implementation of some."""
    for shift, name in enumerate(("gpt2", "llama", "gemma2", "gpt_oss", "mistral", "t5", "vit")):
        ways = CASES[name].implementations
        for number, (places, others) in enumerate(itertools.product(PLACES, OTHERS)):
            how = ways[(number + number // 2 + shift) % len(ways)]
            yield pytest.param(name, how, places, others, id=f"{name}-{how}-{places}-{others}")


def patch(pattern, weights, **places):
    return Edit("patch", {"pattern": pattern, **places}, weights)


def check(name, how, edits, arguments):
    expected, gradients = run(transformers_model(CASES[name], ChangedAttention(edits)), arguments)
    model = CASES[name].build(how)
    actual, actual_gradients = changed(model, edits, lambda: run(model, arguments))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
    for parameter, gradient in gradients.items():
        ours = actual_gradients.get(parameter)
        if ours is None:  # a query of heads that are all replaced
            assert not gradient.any()
        else:
            torch.testing.assert_close(ours, gradient, rtol=0, atol=1e-4)


def other_run(name, how, seed=1):
    """Patterns and weights of a run over other inputs."""
    attention, arguments = ChangedAttention(), inputs(name, seed)
    run(transformers_model(CASES[name], attention), arguments)
    model = CASES[name].build(how)
    with torch.no_grad(), regard.record(model) as recording:
        model(**arguments)
    return recording, attention.weights


@pytest.mark.parametrize(("name", "how", "places", "others"), [*runs()])
def test_patterns_of_another_text(name, how, places, others):
    others = OTHERS[others]
    if name == "gemma2" and others:
        others = (*others[:3], *others[4:])
    recording, weights = other_run(name, how)
    (pattern,) = (
        layer.pattern for layer in recording.layers if (layer.kind, layer.index) == ("self", 1)
    )
    edits = [patch(pattern, weights["self", 1], layers=1, **PLACES[places]), *others]
    check(name, how, edits, inputs(name))


@pytest.mark.parametrize("kind", ["cross", "encoder"])
@pytest.mark.parametrize("how", CASES["t5"].implementations)
def test_patterns_of_other_kinds(how, kind):
    recording, weights = other_run("t5", how)
    (pattern,) = (
        layer.pattern for layer in recording.layers if (layer.kind, layer.index) == (kind, 1)
    )
    edits = [patch(pattern, weights[kind, 1], layers=1, kind=kind, heads=[0, 5])]
    check("t5", how, edits, inputs("t5"))


@pytest.mark.parametrize(("name", "how"), [("gpt2", "sdpa"), ("llama", "eager")])
def test_one_head_and_one_sequence_stand_for_all(name, how):
    recording, weights = other_run(name, how)
    pattern, exact = recording[0][:1, 3:4], weights["self", 0][:1, 3:4]
    edits = [patch(pattern, exact, layers=1)]
    check(name, how, edits, inputs(name))


def test_a_pattern_of_another_layer_two_patterns_and_another_model():
    recording, weights = other_run("gpt2", "sdpa")
    llama, llama_weights = other_run("llama", "sdpa")
    edits = [
        patch(recording[0], weights["self", 0], layers=1, heads=[0, 2]),
        patch(llama[1], llama_weights["self", 1], layers=1, heads=[3]),
    ]
    check("gpt2", "sdpa", edits, inputs("gpt2"))
    check("llama", "eager", edits, inputs("llama"))


def test_a_pattern_made_by_hand():
    torch.manual_seed(2)
    query, key = torch.randn(2, 1, 6, 9, 3).unbind()
    bias, alibi = torch.randn(6, 9, 9), torch.rand(6)
    mask = regard.causal() & regard.window(4)
    pattern = regard.Pattern(query, key, mask=mask, scale=0.3, bias=bias, alibi=alibi)
    query_number, key_number = torch.arange(9)[:, None], torch.arange(9)
    distance = (query_number - key_number).abs()
    scores = query @ key.mT * 0.3 + bias - alibi[:, None, None] * distance
    hidden = (key_number > query_number) | (distance >= 4)
    exact = masked_softmax(scores, hidden.expand(scores.shape))
    edits = [patch(pattern, exact, layers=0, heads=[1, 4])]
    check("gpt2", "sdpa", edits, inputs("gpt2"))


def test_a_changed_pattern_put_into_an_unchanged_run():
    model = CASES["gpt2"].build("sdpa")
    edits = [edit("knock_out", layers=1, keys=slice(2, 5), queries=slice(4, None))]
    edits += [edit("steer", layers=1, keys=1, by=1.0, heads=[1, 2])]
    attention = ChangedAttention(edits)
    run(transformers_model(CASES["gpt2"], attention), inputs("gpt2", 1))
    with regard.record(model) as recording:
        changed(model, edits, lambda: model(**inputs("gpt2", 1)))
    places = {"layers": 1, "heads": [1, 4]}
    stated = [patch(recording[1], attention.weights["self", 1], **places)]
    stated += [edit("steer", layers=1, keys=3, by=-1.0, heads=[0, 2])]
    check("gpt2", "sdpa", stated, inputs("gpt2"))


def test_all_changes_of_one_layer_state_themselves_in_any_order():
    recording, weights = other_run("gpt2", "sdpa")
    edits = [patch(recording[1], weights["self", 1], layers=1, heads=1), *OTHERS["beside others"]]
    check("gpt2", "sdpa", edits, inputs("gpt2"))
    check("gpt2", "sdpa", edits[::-1], inputs("gpt2"))


def test_our_gpt(monkeypatch):
    torch.manual_seed(0)
    model, ids = GPT(VARIANTS["grouped"]).eval(), torch.randint(0, 29, (2, 1, 9))
    attention = ChangedAttention()
    with in_our_gpt(model, attention, monkeypatch):
        model(ids[0])
    with regard.record(model) as recording:
        model(ids[0])
    edits = [patch(recording[2], attention.weights["self", 2], layers=2, heads=[0, 3])]
    with in_our_gpt(model, ChangedAttention(edits), monkeypatch):
        expected = model(ids[1])
    actual = changed(model, edits, lambda: model(ids[1]))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


def test_a_pattern_in_half_precision_and_in_double():
    model, x = Stack(2), torch.randn(2, 2, 7, 12)
    attention = ChangedAttention()
    with in_torch(attention):
        model(x[0])
    with regard.record(model) as recording:
        model(x[0])
    for dtype, atol in ((torch.float64, 1e-5), (torch.bfloat16, 3e-2)):
        cast = recording[1].problem.cast(dtype)
        pattern = regard.Pattern(cast.query, cast.key, mask=regard.causal(), scale=cast.scale)
        edits = [patch(pattern, attention.weights["self", 1], layers=1, heads=1)]
        with in_torch(ChangedAttention(edits)):
            expected = model(x[1])
        actual = changed(model, edits, lambda: model(x[1]))
        assert actual.dtype == torch.float32
        torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral"])
def test_over_a_generation_each_call_takes_its_rows(name, cache):
    case, length = CASES[name], PROMPT + NEW
    other = {"input_ids": torch.randint(3, 101, (1, length))}
    attention = ChangedAttention()
    run(transformers_model(case, attention), other)
    model = case.build("sdpa")
    with regard.record(model) as recording:
        model(**other)
    edits = [patch(recording[1], attention.weights["self", 1], layers=1, heads=[1, 2, 4])]
    written = transformers_model(case, ChangedAttention(edits, prompt=PROMPT))
    expected, logits = from_scratch(written, prompt())
    options = {"do_sample": False, "max_new_tokens": NEW, "eos_token_id": None}
    options |= {"return_dict_in_generate": True, "output_logits": True}
    options |= {} if cache is None else {"cache_implementation": cache}
    out = changed(model, edits, lambda: model.generate(prompt(), **options))
    torch.testing.assert_close(torch.stack(out.logits, 1), logits, rtol=0, atol=1e-5)
    assert torch.equal(out.sequences, expected)


def text_read_with_a_cache(model, ids, prompt=9):
    """Logits of a text whose prompt is read at once, and then token by token."""
    cache = hf.DynamicCache(config=model.config)
    parts = [(0, prompt), *((i, i + 1) for i in range(prompt, ids.shape[1]))]
    with torch.no_grad():
        out = [model(ids[:, a:b], past_key_values=cache).logits for a, b in parts]
    return torch.cat(out, 1)


def made_by_hand(length, mask):
    torch.manual_seed(7)
    query, key = torch.randn(2, 1, 6, length, 3).unbind()
    return regard.Pattern(query, key, mask=mask)


def test_weights_on_keys_that_a_rolling_cache_dropped_are_refused():
    """Their values are gone, and what is left of a row is not the row."""
    model = CASES["mistral"].build("sdpa")  # with a window of 5 keys
    ids = torch.randint(3, 101, (1, 13))
    pattern = made_by_hand(13, regard.causal())
    lost = pattern[..., 9, :5].sum(-1).max()
    expected = f"have up to {lost:.3g} of their weight on keys other than 5 to 9,"
    with regard.intervene(model) as change:
        change.patch(layers=0, pattern=pattern)
        with pytest.raises(regard.Error) as error:
            text_read_with_a_cache(model, ids)
    assert "the queries 9 to 9" in str(error.value)
    assert expected in str(error.value)
    assert "use_cache=False" in str(error.value)


def test_a_pattern_that_sees_only_what_a_rolling_cache_holds():
    """By a mask, or by weights of exactly 0; then a row is the same with the cache and without."""
    model, ids = CASES["mistral"].build("sdpa"), torch.randint(3, 101, (1, 13))
    bias = torch.zeros(13, 13).masked_fill(torch.arange(13)[:, None] - torch.arange(13) >= 4, -1e6)
    query, key = torch.randn(2, 1, 6, 13, 3).unbind()
    masks = [regard.causal() & regard.window(size) for size in (3, 5)]
    by_weights = regard.Pattern(query, key, mask=regard.causal(), bias=bias)
    for pattern in (*(made_by_hand(13, mask) for mask in masks), by_weights):
        with torch.no_grad(), regard.intervene(model) as change:
            change.patch(layers=1, pattern=pattern)
            at_once, with_cache = model(ids).logits, text_read_with_a_cache(model, ids)
        torch.testing.assert_close(with_cache, at_once, rtol=0, atol=1e-5)


@pytest.mark.parametrize("heads", [1, [1, 3]])
def test_only_the_weights_of_patched_heads_must_lie_on_what_a_rolling_cache_holds(heads):
    model, ids = CASES["mistral"].build("sdpa"), torch.randint(3, 101, (1, 13))
    lag = torch.arange(13)[:, None] - torch.arange(13)
    bias = torch.zeros(6, 13, 13)
    bias[heads] = bias[heads].masked_fill(lag >= 4, -torch.inf)
    query, key = torch.randn(2, 1, 6, 13, 3).unbind()
    pattern = regard.Pattern(query, key, mask=regard.causal(), bias=bias)
    with torch.no_grad(), regard.intervene(model) as change:
        change.patch(layers=1, heads=heads, pattern=pattern)
        at_once, with_cache = model(ids).logits, text_read_with_a_cache(model, ids)
    torch.testing.assert_close(with_cache, at_once, rtol=0, atol=1e-5)
    with regard.intervene(model) as change:
        change.patch(layers=1, heads=2, pattern=pattern)
        with pytest.raises(regard.Error, match="of their weight on keys other than"):
            text_read_with_a_cache(model, ids)


def test_a_pattern_is_refused_where_a_rolling_cache_was_full_before_the_block():
    """Its rows are numbered from the start of the text, which is unknown there."""
    model, ids = CASES["mistral"].build("sdpa"), torch.randint(3, 101, (1, 13))
    cache = hf.DynamicCache(config=model.config)
    with torch.no_grad():
        model(ids[:, :9], past_key_values=cache)
        with regard.intervene(model) as change:
            change.patch(layers=0, pattern=made_by_hand(13, regard.causal()))
            model(ids[:, 9:10], past_key_values=cache)  # looks like a cache that holds all
            with pytest.raises(regard.Error, match=r"^patch\(.*cache was full"):
                model(ids[:, 10:11], past_key_values=cache)
