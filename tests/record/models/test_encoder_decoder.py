"""Models of an encoder and a decoder: kinds, their names, and generation."""

from collections import Counter
from contextlib import contextmanager

import pytest
import torch
import transformers
from record.models.classes import CASES, record
from record.models.inputs import GROUPED, VISION, H, Numbers

import regard

NAMES = ("t5", "bart", "whisper")
NEW = 9
PLACES = {
    "t5": {
        "encoder": "encoder.block.{}.layer.0.SelfAttention",
        "self": "decoder.block.{}.layer.0.SelfAttention",
        "cross": "decoder.block.{}.layer.1.EncDecAttention",
    },
    "bart": {
        "encoder": "model.encoder.layers.{}.self_attn",
        "self": "model.decoder.layers.{}.self_attn",
        "cross": "model.decoder.layers.{}.encoder_attn",
    },
}
PLACES["whisper"] = PLACES["bart"]


@contextmanager
def decoded(model):
    """Collect the ids that a decoder is called with: what `generate` gives may leave some out."""
    ids = []

    def see(module, args, kwargs):
        ids.append(kwargs["decoder_input_ids"])

    with model.register_forward_pre_hook(see, with_kwargs=True):
        yield ids


def source(name):
    arguments, real = CASES[name].call()
    kept = ("input_ids", "attention_mask", "input_features")
    return {k: v for k, v in arguments.items() if k in kept}, real


@pytest.mark.parametrize("name", NAMES)
def test_kinds_have_names_and_counts(name):
    case = CASES[name]
    _, recording, _ = record(case, "sdpa")
    assert recording.kinds == ("self", "cross", "encoder")
    for kind, place in PLACES[name].items():
        names = [layer.name for layer in recording.of_kind(kind).layers]
        assert names == [place.format(i) for i in range(case.layers[kind])]
    assert tuple(recording) == tuple(recording.of_kind("self"))
    scales = {layer.pattern.problem.scale for layer in recording.layers}
    if name in ("t5", "whisper"):  # no scale of their own in the call
        assert scales == {1.0}
    counts = [f"{case.layers[kind]} × {kind}" for kind in recording.kinds]
    assert repr(recording) == f"Recording({', '.join(counts)})"


@pytest.mark.parametrize("how", ["sdpa", "eager"])
@pytest.mark.parametrize("name", NAMES)
def test_position_bias_is_t5_alone(name, how):
    case = CASES[name]
    _, recording, _ = record(case, how)
    biased = Counter(
        layer.kind for layer in recording.layers if layer.pattern.problem.rows.bias is not None
    )
    for kind in ("self", "encoder"):
        assert biased[kind] == (case.layers[kind] if name == "t5" else 0)


@pytest.mark.each_once
@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("how", ["sdpa", "eager"])
@pytest.mark.parametrize("name", NAMES)
def test_generation(name, how, cache):
    case = CASES[name]
    model, (arguments, real) = case.build(how), source(name)
    options = {"do_sample": False, "max_new_tokens": NEW, "min_new_tokens": NEW}
    if cache is not None:
        options["cache_implementation"] = cache
    expected = model.generate(**arguments, **options)
    with decoded(model) as steps, regard.record(model) as recording:
        assert torch.equal(model.generate(**arguments, **options), expected)
    ids = torch.cat(steps, dim=-1)
    length = ids.shape[-1]
    assert length >= NEW - 1
    with torch.no_grad():
        out = case.build("eager")(
            **arguments, decoder_input_ids=ids, output_attentions=True, use_cache=False
        )
    assert Counter(layer.kind for layer in recording.layers) == case.layers
    for kind, attribute, _ in case.outputs:
        for layer, weight in zip(recording.of_kind(kind).layers, out[attribute], strict=True):
            assert layer.pattern.shape == weight.shape
            assert len(layer.rows) == (length if kind != "encoder" else weight.shape[-2])
            error = (layer.pattern.dense() - weight).abs().amax((1, 3))
            error = error[real["encoder"]] if kind == "encoder" else error
            assert error.max() < 1e-5


@pytest.mark.parametrize("parts", [("eager", "sdpa"), ("sdpa", "eager"), ("eager", "eager")])
def test_a_composite_of_two_models(parts):
    text = CASES["gpt2"].config.to_dict() | {"add_cross_attention": True}
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.ViTConfig(**VISION), transformers.GPT2Config(**text)
    )
    torch.manual_seed(5)
    model = transformers.VisionEncoderDecoderModel(config).eval()
    arguments = {
        "pixel_values": torch.randn(2, 3, 21, 21),
        "decoder_input_ids": torch.randint(3, 101, (2, 13)),
    }
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(**arguments, output_attentions=True)
    model.encoder.set_attn_implementation(parts[0])
    model.decoder.set_attn_implementation(parts[1])
    with torch.no_grad(), regard.record(model) as recording:
        out = model(**arguments)
    assert model.encoder.config._attn_implementation == parts[0]
    assert model.decoder.config._attn_implementation == parts[1]
    assert (out.logits - expected.logits).abs().max() < 1e-5
    weights = {
        "encoder": expected.encoder_attentions,
        "self": expected.decoder_attentions,
        "cross": expected.cross_attentions,
    }
    assert recording.kinds == ("self", "cross", "encoder")
    assert recording.of_kind("cross")[0].shape == (2, H, 13, 50)
    for kind, layers in weights.items():
        for pattern, weight in zip(recording.of_kind(kind), layers, strict=True):
            assert (pattern.dense() - weight).abs().max() < 1e-5


@pytest.mark.parametrize("parts", [("eager", "sdpa"), ("sdpa", "eager"), ("eager", "eager")])
def test_a_model_that_sees_and_reads(parts):
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**VISION),
        text_config=transformers.LlamaConfig(**GROUPED),
        image_token_id=99,
    )
    torch.manual_seed(5)
    model = transformers.LlavaForConditionalGeneration(config).eval()
    ids = torch.cat([torch.full((2, 49), 99), torch.randint(3, 99, (2, 11))], dim=-1)
    arguments = {"input_ids": ids, "pixel_values": torch.randn(2, 3, 21, 21)}
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(**arguments, output_attentions=True)
    model.set_attn_implementation({"vision_config": parts[0], "text_config": parts[1]})
    with torch.no_grad(), regard.record(model) as recording:
        out = model(**arguments)
    assert model.config.vision_config._attn_implementation == parts[0]
    assert model.config.text_config._attn_implementation == parts[1]
    assert (out.logits - expected.logits).abs().max() < 1e-5
    towers = ("model.vision_tower.encoder", "model.language_model")
    names = [f"{tower}.layers.{i}.self_attn" for tower in towers for i in range(2)]
    assert [layer.name for layer in recording.layers] == names
    assert recording.kinds == ("self",)
    for name, weight in zip(names[2:], expected.attentions, strict=True):
        assert (recording[name].dense() - weight).abs().max() < 1e-5


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_tokens_of_both_sides(name):
    model, (arguments, _) = CASES[name].build("sdpa"), source(name)
    with decoded(model) as steps, regard.record(model, tokens=Numbers()) as recording:
        model.generate(**arguments, do_sample=False, max_new_tokens=NEW, min_new_tokens=NEW)
    rows = torch.cat(steps, dim=-1).tolist()
    assert recording.tokens == tuple(tuple(map(str, row)) for row in rows)
    rows = arguments["input_ids"].tolist()
    assert recording.source_tokens == tuple(tuple(map(str, row)) for row in rows)
