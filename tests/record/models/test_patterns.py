"""Patterns are the eager attention's weights, and a model computes what it computes without."""

import functools
from collections import Counter

import pytest
import torch
import transformers
from record.models.classes import CASES, record, weights_of
from record.models.inputs import TOKENS, B, G, H, L, labels

import regard
from regard.record import RecordError, use_in_transformers

# Weights of float32: those of two implementations differ by the order of sums, layer upon layer.
# T5's scores are not scaled down, so its rounding is larger; measured: 3e-6, others 1e-6.
NEAR = 1e-5
OTHERWISE = {"falcon, alibi"}  # what it gives by eager attention is not what it computes by SDPA
RUNS = [
    (name, how)
    for name, case in CASES.items()
    for how in case.implementations
    if name not in OTHERWISE
]


@functools.cache
def eager(name):
    """What a model gives with its own eager attention, weights included."""
    case = CASES[name]
    arguments, real = case.call()
    with torch.no_grad():
        out = case.build("eager")(**arguments, output_attentions=True)
    return arguments, real, out


def result(out):
    """The tensors of a model's output, which a recording must not change."""
    names = ("logits", "last_hidden_state", "logits_per_image", "encoder_last_hidden_state")
    actual = [out[name] for name in names if name in out]
    assert actual
    return actual


def implementations(model):
    """The implementation in every configuration of a model."""
    configs = [m.config for m in model.modules() if hasattr(m, "config")]
    parts = [getattr(config, name) for config in configs for name in config.sub_configs]
    return [config._attn_implementation for config in (*configs, *parts)]


def worst(recording, name):
    """The largest difference of a recording from eager weights, over rows of real tokens."""
    errors = []
    _, real, out = eager(name)
    for kind, prefix, weights in weights_of(CASES[name], out):
        layers = [
            layer for layer in recording.of_kind(kind).layers if layer.name.startswith(prefix)
        ]
        assert len(layers) >= len(weights) > 0
        assert [layer.index for layer in recording.of_kind(kind).layers] == [
            *range(CASES[name].layers[kind])
        ]
        for layer, expected in zip(layers, weights, strict=False):
            assert layer.pattern.shape == expected.shape
            rows = real.get(prefix or kind, torch.ones(B, expected.shape[-2], dtype=torch.bool))
            errors.append((layer.pattern.dense() - expected).abs().amax((1, 3))[rows].max())
    return float(max(errors))


@pytest.mark.each_once
@pytest.mark.parametrize(("name", "how"), RUNS)
def test_patterns_are_eager_weights(name, how):
    case, (arguments, real, _) = CASES[name], eager(name)
    model = case.build(how)
    before = implementations(model)
    with torch.no_grad():
        expected = model(**arguments)
        with regard.record(model) as recording:
            out = model(**arguments)
    assert implementations(model) == before == [how] * len(before)
    assert Counter(layer.kind for layer in recording.layers) == case.layers
    assert worst(recording, name) < NEAR
    for layer in recording.layers:
        assert dict(model.named_modules())[layer.name]
        assert layer.pattern.problem.key.shape[1] == case.groups
    for actual, wanted in zip(result(out), result(expected), strict=True):
        if how == "sdpa":  # bit for bit
            assert torch.equal(actual, wanted)
            continue
        rows = next((r for r in real.values() if r.shape == wanted.shape[:2]), slice(None))
        # Activations near 1, and rounding at 1e-7 a step. Rows of padding see nothing: zeros here,
        # where eager spreads their weight over everything.
        assert (actual - wanted)[rows].abs().max() < 2e-5
    if how == "sdpa":  # whose calls are seen without the model, too
        with torch.no_grad(), regard.record() as alone:
            out = model(**arguments)
        assert all(map(torch.equal, result(out), result(expected)))
        for ours, theirs in zip(alone.layers, recording.layers, strict=True):
            assert (ours.name, ours.kind, ours.index) == (theirs.name, theirs.kind, theirs.index)
            assert torch.equal(ours.pattern.dense(), theirs.pattern.dense())


EAGER = [name for name, how in RUNS if how == "eager"]
# Every third: what a class's weights are does not depend on when it is switched.
FOR_GOOD = [
    pytest.param(name, marks=[pytest.mark.thorough] * (number % 3 > 0))
    for number, name in enumerate(EAGER)
]


@pytest.mark.parametrize("name", FOR_GOOD)
def test_for_good(name):
    case, (arguments, real, expected) = CASES[name], eager(name)
    model = case.build("eager")
    use_in_transformers()
    model.set_attn_implementation("regard")
    assert set(implementations(model)) == {"regard"}
    with torch.no_grad(), regard.record() as recording:
        out = model(**arguments)
    assert worst(recording, name) < NEAR
    for actual, wanted in zip(result(out), result(expected), strict=True):
        rows = next((r for r in real.values() if r.shape == wanted.shape[:2]), slice(None))
        assert (actual - wanted)[rows].abs().max() < 2e-5


def test_sinks_take_their_share():
    _, recording, real = record(CASES["gpt_oss"])
    for pattern in recording:
        sums = pattern.dense().sum(-1).transpose(1, 2)[real["self"]]
        assert 0.01 < sums.min() <= sums.max() < 0.9999


def test_softcap_flattens():
    _, recording, _ = record(CASES["gemma2"])
    assert [pattern.problem.softcap for pattern in recording] == [2.0, 2.0]


def test_alibi_in_the_mask(monkeypatch):
    # Eager Falcon adds its ALiBi twice, in the mask and by itself, so that its weights are others:
    # what its SDPA is called with is written out in their place.
    case, weights = CASES["falcon, alibi"], []
    model, recording, real = record(case, "sdpa")

    def written_out(query, key, value, attn_mask, dropout_p, is_causal):
        scores = query @ key.mT / query.shape[-1] ** 0.5 + attn_mask
        weights.append(scores.softmax(-1))
        return weights[-1] @ value

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", written_out)
    with torch.no_grad():
        model(**case.call()[0])
    assert len(recording) == len(weights) == 2
    for pattern, expected in zip(recording, weights, strict=True):
        error = (pattern.dense() - expected).abs().amax((1, 3))[real["self"]]
        assert error.max() < NEAR


def test_windows_are_two_integers_a_row():
    for name in ("mistral", "gemma2", "modernbert", "llama4", "qwen2"):
        _, recording, _ = record(CASES[name])
        assert all(pattern.problem.rows.is_interval for pattern in recording)


def allowed(length):
    """A mask that is written down, with gaps: everyone sees itself and some of what was before."""
    torch.manual_seed(3)
    seen = torch.rand(2, 1, length, length) > 0.5
    return seen.tril() | torch.eye(length, dtype=torch.bool)


def hole(length):
    keep = torch.ones(2, length, dtype=torch.int64)
    keep[0, 5:9] = keep[1, :2] = keep[1, 11] = 0
    return keep


def nobody(length):
    keep = torch.ones(2, length, dtype=torch.int64)
    keep[1] = 0
    return keep


MASKS = {
    "written down": lambda n: {
        "attention_mask": torch.zeros(2, 1, n, n).masked_fill(
            ~allowed(n), torch.finfo(torch.float32).min
        )
    },
    "padding between tokens": lambda n: {"attention_mask": hole(n)},
    "a sequence of padding": lambda n: {"attention_mask": nobody(n)},
    "two documents": lambda n: {
        "position_ids": torch.cat([torch.arange(9), torch.arange(n - 9)])[None].expand(2, -1),
        "use_cache": False,
    },
}


@pytest.mark.each_once
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    ("name", "how"), [run for run in RUNS if run[0] in ("llama", "gemma2", "mistral", "gpt_oss")]
)
def test_masks_of_other_shapes(name, how, mask):
    case = CASES[name]
    torch.manual_seed(4)
    arguments = {"input_ids": torch.randint(3, 101, (2, 23)), **MASKS[mask](23)}
    if mask == "two documents":  # they differ in batches of one
        arguments = {k: v[:1] if torch.is_tensor(v) else v for k, v in arguments.items()}
    real = arguments.get("attention_mask", torch.ones(len(arguments["input_ids"]), 23))
    real = real.bool() if real.ndim == 2 else torch.ones(2, 23, dtype=torch.bool)
    with torch.no_grad():
        expected = case.build("eager")(**arguments, output_attentions=True)
        model = case.build(how)
        with regard.record(model) as recording:
            out = model(**arguments)
    for pattern, weight in zip(recording, expected.attentions, strict=True):
        assert (pattern.dense() - weight).abs().amax((1, 3))[real].max() < NEAR
        assert pattern.dense().isfinite().all()
    assert (out.logits - expected.logits)[real].abs().max() < 2e-5


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "t5", "bart", "clip"])
def test_saved_and_loaded(name, tmp_path):
    _, recording, _ = record(CASES[name], CASES[name].implementations[0])
    recording.save(tmp_path / "kept")
    again = regard.load(tmp_path / "kept")
    for ours, theirs in zip(again.layers, recording.layers, strict=True):
        assert (ours.name, ours.kind, ours.index) == (theirs.name, theirs.kind, theirs.index)
        assert torch.equal(ours.pattern.dense(), theirs.pattern.dense())


def test_gradients_are_those_of_eager_attention():
    case = CASES["llama"]
    arguments, _ = case.call()
    arguments["labels"] = labels(arguments)
    gradients = []
    use_in_transformers()
    for how in ("eager", "regard"):
        model = case.build("eager")
        model.set_attn_implementation(how)
        model(**arguments).loss.backward()
        gradients.append([p.grad for p in model.parameters()])
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)


def test_gradients_flow_while_recording():
    case = CASES["gemma2"]
    arguments, _ = case.call()
    arguments["labels"] = labels(arguments)
    gradients = []
    for recorded in (False, True):
        model = case.build("eager")
        if recorded:
            with regard.record(model) as recording:
                model(**arguments).loss.backward()
            assert not any(pattern.problem.query.requires_grad for pattern in recording)
        else:
            model(**arguments).loss.backward()
        gradients.append([p.grad for p in model.parameters()])
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "gpt_oss", "clip", "t5"])
def test_names_are_back_after_a_failure(name):
    model, (arguments, _) = CASES[name].build("eager"), CASES[name].call()
    before = implementations(model)

    def fail(*_):
        assert "regard" in implementations(model)
        raise ZeroDivisionError

    last = [m for m in model.modules() if isinstance(m, torch.nn.Linear)][-1]
    last.register_forward_hook(fail)
    with pytest.raises(ZeroDivisionError), regard.record(model):
        model(**arguments)
    assert implementations(model) == before


def test_output_attentions_is_refused_while_recording():
    model, (arguments, _) = CASES["llama"].build("eager"), CASES["llama"].call()
    before = implementations(model)
    with pytest.raises(RecordError, match=r"recording\[layer\]"), regard.record(model):
        model(**arguments, output_attentions=True)
    assert implementations(model) == before


@pytest.mark.parametrize("how", ["flex_attention"])
def test_other_implementations_are_switched_too(how):
    case, (arguments, real, expected) = CASES["llama"], eager("llama")
    model = case.build(how)
    with torch.no_grad(), regard.record(model) as recording:
        out = model(**arguments)
    assert set(implementations(model)) == {how}
    assert worst(recording, "llama") < NEAR
    assert (out.logits - expected.logits)[real["self"]].abs().max() < 2e-5


def test_parts_of_a_model_are_switched_each_by_itself():
    case, (arguments, *_) = CASES["clip"], eager("clip")
    for parts in (("eager", "sdpa"), ("sdpa", "eager")):
        model = case.build("sdpa")
        model.set_attn_implementation({"text_config": parts[0], "vision_config": parts[1]})
        before = implementations(model)
        assert {"eager", "sdpa"} == set(before)
        with torch.no_grad():
            plain = model(**arguments)
            with regard.record(model) as recording:
                out = model(**arguments)
        assert implementations(model) == before
        assert worst(recording, "clip") < NEAR
        same = [
            torch.equal(plain[name][0], out[name][0])
            for name in ("text_model_output", "vision_model_output")
        ]
        assert same[parts.index("sdpa")]


FALCON = {"hidden_size": 84, "num_hidden_layers": 1, "num_attention_heads": H, **TOKENS}
REFUSED = {
    "falcon": (transformers.FalconForCausalLM, transformers.FalconConfig(**FALCON)),
    "bloom": (
        transformers.BloomForCausalLM,
        transformers.BloomConfig(hidden_size=42, n_layer=1, n_head=H, **TOKENS),
    ),
    "mpt": (
        transformers.MptForCausalLM,
        transformers.MptConfig(d_model=42, n_layers=1, n_heads=H, max_seq_len=64, **TOKENS),
    ),
    "gptj": (
        transformers.GPTJForCausalLM,
        transformers.GPTJConfig(
            n_embd=84, n_layer=1, n_head=H, n_positions=64, rotary_dim=6, **TOKENS
        ),
    ),
    "deberta": (
        transformers.DebertaV2Model,
        transformers.DebertaV2Config(
            hidden_size=42,
            intermediate_size=53,
            num_hidden_layers=1,
            num_attention_heads=H,
            **TOKENS,
        ),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_attention_out_of_reach_is_refused(name):
    kind, config = REFUSED[name]
    config._attn_implementation = "eager"
    model = kind(config).eval()
    before = implementations(model)
    with pytest.raises(RecordError, match="does not let it be replaced"):  # noqa: SIM117
        with regard.record(model):
            model(torch.randint(3, 101, (B, L)))
    assert implementations(model) == before
    assert G < H
