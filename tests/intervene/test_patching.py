"""Weights, values and contexts of another run, put into a run, against attention written out.

Axes: B batch, H query heads, G key heads, L positions, Dv dimension of a value.
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


@pytest.mark.each_once
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


@pytest.mark.each_once
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


ROWS = {"all": None, "one": 3, "some": [0, -1, 4], "a slice": slice(2, -2)}


PATCHED = [*itertools.product(("pattern", "context", "value"), ROWS)]


def positions():
    """Activation, positions and places, and whether beside others, in each model."""
    names = ("gpt2", "llama", "gemma2", "gpt_oss", "mistral", "t5", "vit")
    for shift, name in enumerate(names):
        ways = CASES[name].implementations
        for number, case in enumerate(PATCHED):
            what, rows = case
            if name == "gpt_oss" and what == "pattern" and ROWS[rows] is not None:
                continue  # its sinks; see below
            how = ways[(number + shift) % len(ways)]
            places = [*PLACES][(number + shift) % len(PLACES)]
            others = [*OTHERS][(number + shift) % len(OTHERS)]
            label = f"{name}-{how}-{what}-{rows}-{places}-{others}"
            yield pytest.param(name, how, case, places, others, id=label)


def activations(name, kind="self", layer=1, seed=1):
    """What is patched by name, and the weights, of a run over other inputs."""
    attention = ChangedAttention()
    run(transformers_model(CASES[name], attention), inputs(name, seed))
    model = CASES[name].build(CASES[name].implementations[0])
    with torch.no_grad(), regard.record(model) as recording:
        model(**inputs(name, seed))
    (pattern,) = (
        each.pattern for each in recording.layers if (each.kind, each.index) == (kind, layer)
    )
    context, value = attention.contexts[kind, layer], attention.values[kind, layer]
    given = {"pattern": pattern, "context": context, "value": value}
    return given, attention.weights[kind, layer]


@pytest.mark.each_once
@pytest.mark.parametrize(("name", "how", "case", "places", "others"), [*positions()])
def test_positions_of_another_text(name, how, case, places, others):
    what, rows = case
    given, weights = activations(name)
    axis = "keys" if what == "value" else "queries"
    options = {what: given[what], axis: ROWS[rows], "layers": 1, **PLACES[places]}
    others = [each for each in OTHERS[others] if what != "pattern" or each.method == "ablate"]
    if name == "gemma2":  # whose heads share the temperature
        others = [each for each in others if each.method != "temper"]
    check(name, how, [Edit("patch", options, weights), *others], inputs(name))


def test_some_rows_of_a_pattern_with_sinks_have_no_gradient_of_their_own():
    name = "gpt_oss"
    given, weights = activations(name)
    options = {"pattern": given["pattern"], "queries": [1, 5], "layers": 1, "heads": 2}
    edits = [Edit("patch", options, weights)]
    written = transformers_model(CASES[name], ChangedAttention(edits))
    model = CASES[name].build("eager")
    with torch.no_grad():
        expected = written(**inputs(name)).logits
        actual = changed(model, edits, lambda: model(**inputs(name))).logits
    torch.testing.assert_close(actual[0], expected[0], rtol=0, atol=1e-5)
    with pytest.raises(regard.Error, match=r"gradient of the layer's sink logits.*no_grad"):
        changed(model, edits, lambda: model(**inputs(name)))
    other = regard.Pattern(*torch.randn(2, 1, 6, 9, 3).unbind())
    with pytest.raises(regard.Error, match=r"the pattern's sink logits are not the layer's"):
        changed(model, [edit("patch", pattern=other, queries=1)], lambda: model(**inputs(name)))


@pytest.mark.each_once
@pytest.mark.parametrize("what", ["context", "value"])
@pytest.mark.parametrize("kind", ["cross", "encoder"])
@pytest.mark.parametrize("how", CASES["t5"].implementations)
def test_contexts_and_values_of_other_kinds(how, kind, what):
    given, _ = activations("t5", kind)
    axis = {"context": "queries", "value": "keys"}[what]
    options = {what: given[what], axis: [1, -2], "layers": 1, "kind": kind, "heads": [0, 5]}
    check("t5", how, [Edit("patch", options)], inputs("t5"))


@pytest.mark.each_once
@pytest.mark.parametrize("heads", [[0, 1, 2], [1, 2], None, slice(3, None)])
@pytest.mark.parametrize("count", [1, 2, 6])  # heads of the values; the layer has 2 and 6
def test_values_of_whole_groups_of_query_heads_and_of_parts(heads, count):
    size = activations("llama")[0]["value"].shape[-1]
    torch.manual_seed(4)
    value = torch.randn(1 if count == 2 else 2, count, 9, size)
    options = {"value": value, "keys": slice(2, 7), "layers": 1, "heads": heads}
    exact = options | {"value": value.repeat_interleave(6 // count, 1)}
    model = CASES["llama"].build("sdpa")
    expected, _ = run(
        transformers_model(CASES["llama"], ChangedAttention([Edit("patch", exact)])),
        inputs("llama"),
    )
    actual, _ = changed(model, [Edit("patch", options)], lambda: run(model, inputs("llama")))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


def test_one_position_one_head_and_one_sequence_stand_for_all():
    shapes = (6, 1, 7), (1, 9, 7), (2, 1, 1, 7), (1, 1, 1, 7)
    for what, axis, shape in itertools.product(("context", "value"), (None, [2, 5]), shapes):
        positions = {"context": "queries", "value": "keys"}[what]
        options = {what: torch.randn(shape), positions: axis, "layers": 1, "heads": [0, 4]}
        check("gpt2", "sdpa", [Edit("patch", options)], inputs("gpt2"))


def test_a_pattern_in_some_rows_and_values_and_contexts_in_others():
    given, weights = activations("llama")
    edits = [
        Edit("patch", {"pattern": given["pattern"], "queries": [1, 4], "layers": 1}, weights),
        Edit("patch", {"pattern": given["pattern"], "queries": 6, "layers": 1}, weights),
        Edit("patch", {"value": given["value"], "keys": 3, "layers": 1, "heads": [0, 2, 4]}),
        Edit("patch", {"value": given["value"], "keys": 2, "layers": 1, "heads": [0, 2, 5]}),
        edit("knock_out", layers=1, queries=7, keys=[2, 3]),
        Edit("patch", {"context": given["context"], "queries": 5, "layers": 0}),
        Edit("patch", {"context": given["context"], "queries": [2, 7], "layers": 0, "heads": 1}),
    ]
    check("llama", "eager", edits, inputs("llama"))
    check("llama", "sdpa", edits[::-1], inputs("llama"))


@pytest.mark.parametrize("what", ["context", "value"])
def test_contexts_and_values_of_our_gpt(what, monkeypatch):
    torch.manual_seed(0)
    model, ids = GPT(VARIANTS["grouped"]).eval(), torch.randint(0, 29, (2, 1, 9))
    attention = ChangedAttention()
    with in_our_gpt(model, attention, monkeypatch):
        model(ids[0])
    given = {"context": attention.contexts, "value": attention.values}[what]["self", 2]
    edits = [edit("patch", **{what: given}, layers=2, heads=[0, 3])]
    with in_our_gpt(model, ChangedAttention(edits), monkeypatch):
        expected = model(ids[1])
    actual = changed(model, edits, lambda: model(ids[1]))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
    assert (model(ids[1]) - expected).abs().max() > 1e-3


@pytest.mark.parametrize("what", ["context", "value"])
def test_contexts_and_values_of_torchs_own_layers(what):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(12, 4, 17, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2).eval()
    x, attention = torch.randn(2, 2, 7, 12), ChangedAttention()
    with torch.no_grad(), in_torch(attention):
        model(x[0])
    given = {"context": attention.contexts, "value": attention.values}[what]["self", 1]
    axis = {"context": "queries", "value": "keys"}[what]
    edits = [edit("patch", **{what: given, axis: [2, 5]}, layers=1, heads=[0, 2])]
    with torch.no_grad(), in_torch(ChangedAttention(edits)):
        expected = model(x[1])
    with torch.no_grad():  # torch's fused operators expose no context
        actual = changed(model, edits, lambda: model(x[1]))
        assert (model(x[1]) - expected).abs().max() > 1e-3
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


def test_gradients_reach_what_is_patched_in():
    model, x = Stack(2), torch.randn(2, 7, 12)
    context = torch.randn(3, 7, 4, requires_grad=True)
    with regard.intervene(model) as change:
        change.patch(layers=1, heads=[0, 2], queries=slice(3, None), context=context)
        (gradient,) = torch.autograd.grad(model(x)[:, -1].sum(), context)
    assert gradient[[0, 2], -1].all()
    assert not gradient[1].any()
    assert not gradient[:, :-1].any()  # earlier rows of the last layer reach no later one


@pytest.mark.each_once
@pytest.mark.parametrize("what", ["pattern", "pattern in rows", "context", "value"])
@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral"])
def test_over_a_generation_each_call_takes_its_rows(name, cache, what):
    case, length = CASES[name], PROMPT + NEW
    other = {"input_ids": torch.randint(3, 101, (1, length))}
    attention = ChangedAttention()
    run(transformers_model(case, attention), other)
    model = case.build("sdpa")
    with regard.record(model) as recording:
        model(**other)
    weights, context, value = (
        of["self", 1] for of in (attention.weights, attention.contexts, attention.values)
    )
    rows = slice(2, 10, 3)
    edits = [
        {
            "pattern": patch(recording[1], weights, layers=1, heads=[1, 2, 4]),
            "pattern in rows": patch(recording[1], weights, queries=rows, layers=1, heads=[1, 4]),
            "context": edit("patch", context=context, queries=rows, layers=1, heads=[1, 4]),
            "value": edit("patch", value=value, keys=rows, layers=1, heads=[1, 2, 4]),
        }[what]
    ]
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


def test_positions_that_the_tensor_does_not_hold():
    model, ids = CASES["gpt2"].build("sdpa"), torch.randint(3, 101, (1, 9))
    for what, name in (("context", "queries"), ("value", "keys")):
        match = rf"^patch\(.*{what}=tensor of shape .*holds 5 positions.*{name} up to 8"
        with regard.intervene(model) as change, torch.no_grad():
            change.patch(**{what: torch.randn(6, 5, 7)}, layers=1)
            with pytest.raises(regard.Error, match=match):
                model(ids)
    with regard.intervene(model) as change, torch.no_grad():  # of a longer text, its first part
        change.patch(context=torch.randn(6, 5, 7), queries=slice(0, 5), layers=1)
        change.patch(value=torch.randn(6, 5, 7), keys=slice(0, 5), layers=0)
        model(ids)
