"""Patching one run into another, head by head and position by position, against plain hooks.

Axes: N layers, H query heads, T positions.
"""

import pickle
from contextlib import contextmanager

import pytest
import torch
from support.changed_attention import ChangedAttention, Edit
from support.hooked_models import HEADS, LAYERS, MODELS, VOCAB
from support.written_models import in_our_gpt, in_torch
from torch import nn

import regard
from regard.lens import patch

T, TARGET = 7, regard.lens.LogProbability(5)
RUNS = {"denoise": ("corrupt", "clean"), "noise": ("clean", "corrupt")}


@pytest.fixture(
    params=[
        pytest.param(one, marks=[pytest.mark.thorough] * (one == "gpt2"))  # llama has groups, too
        for one in MODELS
    ]
)
def hooked(request):
    return MODELS[request.param]()


@pytest.fixture
def gpt():
    return MODELS["our gpt"]()


@pytest.fixture
def texts():
    clean = torch.randint(VOCAB, (T,))
    corrupt = clean.clone()
    corrupt[[1, 4]] = (corrupt[[1, 4]] + 11) % VOCAB
    return {"clean": clean, "corrupt": corrupt}


def place_in(shape, head, position):
    where = torch.zeros(*shape, 1, dtype=torch.bool)
    where[slice(None) if head is None else head, slice(None) if position is None else position] = 1
    return where


@pytest.mark.each_once
@pytest.mark.parametrize("direction", RUNS)
@pytest.mark.parametrize("over", ["heads", "positions", "both"])
def test_contexts_are_patched_as_by_hooks(hooked, texts, over, direction):
    into, source = (texts[name] for name in RUNS[direction])
    effects = patch(hooked.model, **texts, target=TARGET, over=over, direction=direction)
    unchanged, other = (float(TARGET(hooked.logits(ids))) for ids in (into, source))
    assert effects.unchanged == pytest.approx(unchanged, abs=1e-5)
    assert effects.other == pytest.approx(other, abs=1e-5)
    contexts = hooked.contexts(source)
    axes = {"heads": ("head",), "positions": ("position",), "both": ("head", "position")}[over]
    sizes = {"head": HEADS, "position": T}
    assert effects.axes == ("layer", *axes)
    assert effects.values.shape == (LAYERS, *(sizes[axis] for axis in axes))
    for place, value in zip(effects.places, effects.values.flatten().tolist(), strict=True):
        at = dict(zip(effects.axes, place, strict=True))
        where = place_in((HEADS, T), at.get("head"), at.get("position"))
        changed = hooked.replaced(into, place[0], where, contexts[place[0]])
        assert value == pytest.approx(float(TARGET(changed)) - unchanged, abs=1e-5)
    assert effects.values.abs().max() > 1e-3


def written_out(monkeypatch):
    """Attention written out in our GPT, changed by edits."""

    def logits(gpt, ids, attention):
        with torch.no_grad(), in_our_gpt(gpt.model, attention, monkeypatch):
            return gpt.model(ids[None])

    return logits


@pytest.mark.each_once
@pytest.mark.parametrize("activation", ["value", "pattern"])
@pytest.mark.parametrize("over", ["heads", "positions", "both"])
def test_values_and_patterns_are_patched_as_in_attention_written_out(
    gpt, texts, over, activation, monkeypatch
):
    run, seen = written_out(monkeypatch), ChangedAttention()
    run(gpt, texts["clean"], seen)
    effects = patch(gpt.model, **texts, target=TARGET, over=over, activation=activation)
    unchanged = float(TARGET(run(gpt, texts["corrupt"], ChangedAttention())))
    for place, value in zip(effects.places, effects.values.flatten().tolist(), strict=True):
        at = dict(zip(effects.axes, place, strict=True))
        site = "self", place[0]
        axis = "keys" if activation == "value" else "queries"
        where = {} if over == "heads" else {axis: at["position"]}
        options = {activation: seen.values[site] if activation == "value" else None, **where}
        edit = Edit(
            "patch", {**options, "layers": place[0], "heads": at.get("head")}, seen.weights[site]
        )
        changed = TARGET(run(gpt, texts["corrupt"], ChangedAttention([edit])))
        assert value == pytest.approx(float(changed) - unchanged, abs=1e-5)
    assert effects.values.abs().max() > 1e-3


def test_values_of_one_of_several_query_heads_of_a_group(texts):
    """By a hook: the head's context is that of its own weights and the other run's values."""
    hooked = MODELS["llama"]()
    with torch.no_grad(), regard.record(hooked.model) as recording:
        hooked.logits(texts["corrupt"])
    values = []
    for block in hooked.model.model.layers:
        block.self_attn.v_proj.register_forward_hook(
            lambda _, __, output: values.append(output.unflatten(-1, (2, -1)).transpose(1, 2))
        )
    hooked.contexts(texts["clean"])
    kept = values[:LAYERS]
    effects = patch(hooked.model, **texts, target=TARGET, activation="value")
    for layer, head in effects.places:
        other = recording[layer].dense() @ kept[layer].repeat_interleave(2, 1)
        where = place_in((HEADS, 1), head, None)
        changed = TARGET(hooked.replaced(texts["corrupt"], layer, where, other))
        value = float(effects.values[layer, head])
        assert value == pytest.approx(float(changed) - effects.unchanged, abs=1e-5)


@contextmanager
def fixed(attention):
    with torch.no_grad(), in_torch(attention):
        yield


def test_torchs_own_layers():
    layer = nn.TransformerEncoderLayer(12, 4, 17, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    clean, corrupt = torch.randn(2, 1, T, 12)
    target = lambda output: output[:, 0, 1]  # noqa: E731
    seen = ChangedAttention()
    with fixed(seen):
        model(clean)
    effects = patch(model, {"src": clean}, {"src": corrupt}, target, over="both")
    for place, value in zip(effects.places, effects.values.flatten().tolist(), strict=True):
        layer, head, position = place
        options = {"context": seen.contexts["self", layer], "queries": position}
        edit = Edit("patch", {**options, "layers": layer, "heads": head})
        with fixed(ChangedAttention([edit])):
            changed = float(target(model(corrupt)))
        assert value == pytest.approx(changed - effects.unchanged, abs=1e-5)


def test_a_whole_layer_at_all_positions_restores_what_comes_after(gpt, texts):
    """Where each layer's heads are patched together, the run is the clean one's from there on."""
    contexts = regard.lens.contexts(gpt.model, [texts["clean"]])
    with torch.no_grad(), regard.intervene(gpt.model) as change:
        for layer in range(LAYERS):
            change.patch(layers=layer, context=contexts[layer])
        logits = gpt.logits(texts["corrupt"])
    same = [0, 2, 3, 5, 6]  # the tokens that both texts share
    exact = gpt.logits(texts["clean"])
    torch.testing.assert_close(logits[:, same], exact[:, same], rtol=0, atol=1e-4)


def test_it_is_the_effect_by_the_contexts_of_one_prompt(gpt, texts):
    by = regard.lens.contexts(gpt.model, [texts["clean"]]).mean()
    effects = regard.lens.effects(gpt.model, texts["corrupt"], TARGET, by=by)
    patched = patch(gpt.model, **texts, target=TARGET)
    torch.testing.assert_close(patched.values, effects.values, rtol=0, atol=1e-6)


def test_layers_heads_and_positions_can_be_chosen(gpt, texts):
    whole = patch(gpt.model, **texts, target=TARGET, over="both")
    some = {"layers": [0, 2], "heads": [3, 1], "positions": [1, -1]}
    part = patch(gpt.model, **texts, target=TARGET, over="both", **some)
    assert part.labels == ((0, 2), (1, 3), ("1", "6"))
    expected = whole.values[[0, 2]][:, [1, 3]][:, :, [1, 6]]
    torch.testing.assert_close(part.values, expected, rtol=0, atol=1e-5)
    rows = patch(gpt.model, **texts, target=TARGET, positions=[1, 6])
    with torch.no_grad(), regard.intervene(gpt.model) as change:
        context = regard.lens.contexts(gpt.model, [texts["clean"]])[1]
        change.patch(context=context, queries=[1, 6], layers=1, heads=2)
        changed = float(TARGET(gpt.logits(texts["corrupt"])))
    assert float(rows.values[1, 2]) == pytest.approx(changed - rows.unchanged, abs=1e-5)


@pytest.mark.parametrize("batch_size", [pytest.param(1, marks=pytest.mark.thorough), 3])
def test_batches_of_any_size_say_the_same(gpt, texts, batch_size):
    for activation in ("context", "value", "pattern"):
        options = {"target": TARGET, "over": "positions", "activation": activation}
        expected = patch(gpt.model, **texts, **options)
        actual = patch(gpt.model, **texts, **options, batch_size=batch_size)
        torch.testing.assert_close(actual.values, expected.values, rtol=0, atol=1e-5)


def test_entries_have_names_and_a_table(gpt, texts):
    tokens = [f"<{number}>" for number in texts["corrupt"].tolist()]
    options = {"target": TARGET, "tokens": tokens}
    heads, positions, both = (
        patch(gpt.model, **texts, **options, over=over) for over in ("heads", "positions", "both")
    )
    assert heads.largest(1)[0].name == "{}·{}".format(*heads.largest(1)[0].place)
    layer, position = positions.largest(1)[0].place
    assert positions.largest(1)[0].name == f"layer {layer} at {position} {tokens[position]}"
    largest = both.largest(1)[0]
    layer, head, position = largest.place
    assert largest.name == f"{layer}·{head} at {position} {tokens[position]}"
    assert largest.value == float(both.values[layer, head, position])
    assert both.frame().columns.tolist() == ["layer", "head", "position", "name", "effect"]
    row = both.frame().iloc[2 * HEADS * T + 3 * T + 4]
    assert row.tolist()[:4] == [2, 3, 4, f"4 {tokens[4]}"]
    assert row["effect"] == float(both.values[2, 3, 4])
    assert positions.frame().columns.tolist() == ["layer", "position", "name", "effect"]
    assert repr(heads).startswith("Effects(layer 3 × head 4, context of the clean run; log-prob")
    again = pickle.loads(pickle.dumps(both))
    assert torch.equal(again.values, both.values)
    with pytest.raises(ValueError, match=r"measure\(...\) and check\(...\) are for"):
        heads.measure([(0, 0)])


class Unequal(nn.Module):
    """Layers of 4 and of 2 heads."""

    def __init__(self):
        super().__init__()
        self.first = regard.nn.MultiHeadAttention(20, 4, mask=regard.causal())
        self.second = regard.nn.MultiHeadAttention(20, 2, mask=regard.causal())

    def forward(self, x):
        return x + self.second(x + self.first(x))


def test_heads_that_a_layer_lacks_are_nan():
    clean, corrupt = ({"x": x} for x in torch.randn(2, 1, T, 20))
    effects = patch(Unequal(), clean, corrupt, lambda y: y[:, -1, 0], over="both")
    assert effects.values.shape == (2, 4, T)
    assert effects.values.isnan().sum() == 2 * T
    assert effects.values[1, 2:].isnan().all()


def test_texts_of_a_language_model():
    model = regard.models.open(None)
    clean = "Tom had a red kite and a blue drum. Tom wanted the blue"
    corrupt = "Tom had a red drum and a blue kite. Tom wanted the blue"
    effects = patch(model, clean, corrupt, " drum", heads=0, layers=[0, 1])
    ids = [torch.tensor(model.read(text).ids) for text in (clean, corrupt)]
    target = regard.lens.LogProbability(model.token(" drum"))
    exact = patch(model.module, *ids, target, heads=0, layers=[0, 1])
    torch.testing.assert_close(effects.values, exact.values)
    assert effects.other > -0.1 > effects.unchanged
    assert "' drum'" in effects.target


def test_what_can_not_be_patched_is_refused(gpt, texts):
    clean, corrupt = texts.values()
    cases = [
        ({"over": "keys"}, ValueError, "over must be one of 'heads', 'positions', 'both'"),
        ({"activation": "key"}, ValueError, "activation must be one of 'context', 'value'"),
        ({"direction": "both"}, ValueError, "direction must be one of 'denoise', 'noise'"),
        ({"clean": clean[:-1]}, ValueError, "clean has 6 positions and corrupt 7"),
        (
            {"corrupt": clean[:-2], "direction": "noise"},
            ValueError,
            "clean has 7 positions and corrupt 5, .* as many tokens",
        ),
        ({"positions": 7}, IndexError, "positions asks for 7, but there are only 0 to 6"),
        ({"layers": 3}, IndexError, "layers asks for 3"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1"),
        ({"target": "perplexity"}, ValueError, "target must be 'loss'"),
        ({"model": "gpt2"}, TypeError, "model must be a torch.nn.Module"),
    ]
    for options, error, message in cases:
        given = {"model": gpt.model, "clean": clean, "corrupt": corrupt, "target": TARGET}
        with pytest.raises(error, match=message):
            patch(**given | options)
    twice = lambda model: (model(clean), model(corrupt))[1]  # noqa: E731
    with pytest.raises(regard.Error, match="attends several times in one run"):
        patch(gpt.model, twice, corrupt, TARGET)
