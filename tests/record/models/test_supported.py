"""Which classes of transformers are served: these compute what eager attention does, others raise.

Attention of a class's own is never computed with a mask that it would misread.
"""

import contextlib
import copy

import pytest
import torch
import transformers as hf
from record.models import classes
from record.models.classes import BART, GPT2, WAVES, randomize
from record.models.inputs import GROUPED, PLAIN, TOKENS, H

import regard
from regard.record import RecordError, use_in_transformers

NEAR = 2e-5  # activations near 1, rounding at 1e-7 a step; T5's scores are not scaled down
LENGTH = 19


def ids(padded, rows=2, length=LENGTH):
    torch.manual_seed(1)
    keep = torch.ones(rows, length, dtype=torch.int64)
    if padded:
        keep[1, -5:] = 0
    return {"input_ids": torch.randint(3, 101, keep.shape) * keep, "attention_mask": keep}


def build(model, config, how):
    """Make a model as `from_pretrained` does, with random weights."""
    use_in_transformers()
    torch.manual_seed(0)
    return randomize(model._from_config(copy.deepcopy(config), attn_implementation=how)).eval()


def difference(model, config, arguments, how="regard"):
    """How far the outputs are from those of eager attention, over real tokens."""
    real = arguments["attention_mask"].bool()
    if "decoder_input_ids" in arguments:
        real = torch.ones_like(arguments["decoder_input_ids"]).bool()
    with torch.no_grad():
        ours, eager = (build(model, config, kind)(**arguments) for kind in (how, "eager"))
    names = ("logits", "last_hidden_state")
    one, other = (next(out[n] for n in names if out.get(n) is not None) for out in (ours, eager))
    return float((one - other)[real].abs().max())


LED = {
    **BART,
    "max_encoder_position_embeddings": 64,
    "max_decoder_position_embeddings": 64,
    "attention_window": 8,
}
OWN = {
    "bloom": (hf.BloomForCausalLM, hf.BloomConfig(hidden_size=42, n_layer=1, n_head=H, **TOKENS)),
    "mpt": (
        hf.MptForCausalLM,
        hf.MptConfig(d_model=42, n_layers=1, n_heads=H, max_seq_len=64, **TOKENS),
    ),
    "xglm": (
        hf.XGLMForCausalLM,
        hf.XGLMConfig(d_model=42, ffn_dim=53, num_layers=1, attention_heads=H, **TOKENS),
    ),
    "codegen": (
        hf.CodeGenForCausalLM,
        hf.CodeGenConfig(**GPT2 | {"n_layer": 1, "n_embd": 48, "n_head": 4}, rotary_dim=4),
    ),
    "mvp": (hf.MvpForConditionalGeneration, hf.MvpConfig(max_position_embeddings=64, **BART)),
    "led": (hf.LEDForConditionalGeneration, hf.LEDConfig(**LED)),
    "megatron-bert": (hf.MegatronBertModel, hf.MegatronBertConfig(**PLAIN)),
    "mpnet": (hf.MPNetModel, hf.MPNetConfig(**PLAIN)),
    "rembert": (hf.RemBertModel, hf.RemBertConfig(input_embedding_size=19, **PLAIN)),
    "roformer": (hf.RoFormerModel, hf.RoFormerConfig(**PLAIN | {"hidden_size": 48})),
    "canine": (hf.CanineModel, hf.CanineConfig(**PLAIN, num_hash_functions=2)),
    "convbert": (hf.ConvBertModel, hf.ConvBertConfig(**PLAIN | {"hidden_size": 48})),
    "gpt_neox_japanese": (
        hf.GPTNeoXJapaneseForCausalLM,
        hf.GPTNeoXJapaneseConfig(**PLAIN | {"hidden_size": 48}),
    ),
    "ibert": (hf.IBertModel, hf.IBertConfig(**PLAIN)),
    "lilt": (hf.LiltModel, hf.LiltConfig(**PLAIN | {"hidden_size": 48})),
    "nystromformer": (
        hf.NystromformerModel,
        hf.NystromformerConfig(**PLAIN, segment_means_seq_len=LENGTH, num_landmarks=LENGTH),
    ),
    "squeezebert": (
        hf.SqueezeBertModel,
        hf.SqueezeBertConfig(
            **{**PLAIN, "hidden_size": 48, "num_attention_heads": 4, "intermediate_size": 52},
            embedding_size=48,
        ),
    ),
    "flava, text": (hf.FlavaTextModel, hf.FlavaTextConfig(**PLAIN)),
    "trocr": (
        hf.TrOCRForCausalLM,
        hf.TrOCRConfig(
            d_model=42, decoder_layers=1, decoder_attention_heads=H, decoder_ffn_dim=53, **TOKENS
        ),
    ),
}


@pytest.mark.each_once
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", OWN)
def test_attention_that_a_class_computes_itself_is_not_computed_wrongly(name, padded):
    model, config = OWN[name]
    arguments = ids(padded)
    with pytest.raises(RecordError, match=r"attention of its own.*attn_implementation='eager'"):
        build(model, config, "regard")(**arguments)
    # The documented way leaves it at its own, with a warning from transformers.
    model = build(model, config, "eager")
    with torch.no_grad():
        expected = model(**arguments)[0]
        model.set_attn_implementation("regard")
        assert torch.equal(model(**arguments)[0], expected)


def test_bloom_from_a_folder(tmp_path):
    model, config = OWN["bloom"]
    build(model, config, "eager").save_pretrained(tmp_path)
    use_in_transformers()
    model = model.from_pretrained(tmp_path, attn_implementation="regard")
    with pytest.raises(RecordError, match="a model of type 'bloom'"):
        model(**ids(padded=False))


@pytest.mark.parametrize("how", ["regard", "set", "recorded"])
def test_attention_that_is_in_part_its_own_is_noticed_by_its_mask(how):
    config = hf.BigBirdPegasusConfig(
        max_position_embeddings=64, attention_type="original_full", **BART
    )
    model = build(
        hf.BigBirdPegasusForConditionalGeneration, config, "regard" if how == "regard" else "eager"
    )
    if how == "set":
        model.set_attn_implementation("regard")
    arguments = ids(padded=True) | {"decoder_input_ids": ids(padded=False)["input_ids"]}
    watching = regard.record(model) if how == "recorded" else contextlib.nullcontext()
    with pytest.raises(RecordError, match="output_attentions=True"), watching:
        model(**arguments)


def test_a_mask_of_padding_is_noticed_where_there_was_none_without():
    # Its models lie in another file than its configuration names.
    config = hf.BlipTextConfig(**PLAIN, encoder_hidden_size=42, sep_token_id=3)
    assert difference(hf.BlipTextModel, config, ids(padded=False)) < NEAR
    with pytest.raises(RecordError, match="calculates with its attention mask"):
        build(hf.BlipTextModel, config, "regard")(**ids(padded=True))


# Served, though their classes name no kernel that they support

T5 = classes.T5 | {"num_layers": 2}
ENCODER = (("self", "attentions"),)
BOTH = tuple((kind, attribute) for kind, attribute, _ in classes.BOTH)
SPLINTER = (hf.SplinterModel, hf.SplinterConfig(**PLAIN), ENCODER)
SERVED = {
    "splinter": SPLINTER,
    "layoutlm": (hf.LayoutLMModel, hf.LayoutLMConfig(**PLAIN), ENCODER),
    "markuplm": (
        hf.MarkupLMModel,
        hf.MarkupLMConfig(**PLAIN, max_depth=3, xpath_unit_hidden_size=5),
        ENCODER,
    ),
    "switch_transformers": (
        hf.SwitchTransformersForConditionalGeneration,
        hf.SwitchTransformersConfig(
            **T5, num_experts=3, num_sparse_encoder_layers=1, expert_capacity=64
        ),
        BOTH,
    ),
    "nllb-moe": (
        hf.NllbMoeForConditionalGeneration,
        hf.NllbMoeConfig(max_position_embeddings=64, num_experts=3, **BART),
        BOTH,
    ),
    # Its encoder's attention is its own, and not seen.
    "longt5": (hf.LongT5ForConditionalGeneration, hf.LongT5Config(**T5, local_radius=4), BOTH[1:]),
    "seamless_m4t": (
        hf.SeamlessM4TForTextToText,
        hf.SeamlessM4TConfig(
            hidden_size=42,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=H,
            decoder_attention_heads=H,
            encoder_ffn_dim=53,
            decoder_ffn_dim=53,
            max_position_embeddings=64,
            decoder_start_token_id=1,
            **TOKENS,
        ),
        BOTH,
    ),
    "diffllama": (
        hf.DiffLlamaForCausalLM,
        hf.DiffLlamaConfig(**PLAIN | {"hidden_size": 48}, num_key_value_heads=2),
        ENCODER,
    ),
}


def arguments_of(name, *, padded):
    arguments = ids(padded)
    if SERVED[name][2] is not ENCODER:
        arguments["decoder_input_ids"] = ids(padded=False, length=13)["input_ids"]
    return arguments


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", SERVED)
def test_supported_models_compute_the_same_as_eager_attention(name, padded):
    model, config, _ = SERVED[name]
    assert difference(model, config, arguments_of(name, padded=padded)) < NEAR


@pytest.mark.parametrize(
    ("name", "how"),
    [*((name, "eager") for name in SERVED), ("seamless_m4t", "sdpa"), ("diffllama", "sdpa")],
)
def test_their_patterns_are_eager_weights(name, how):
    kind, config, parts = SERVED[name]
    arguments = arguments_of(name, padded=True)
    model = build(kind, config, how)
    with torch.no_grad():
        expected = build(kind, config, "eager")(**arguments, output_attentions=True)
        with regard.record(model) as recording:
            model(**arguments)
    assert set(recording.kinds) == {part for part, _ in parts}
    for part, attribute in parts:
        weights = [layer for layer in expected[attribute] if layer is not None]
        for pattern, weight in zip(recording.of_kind(part), weights, strict=True):
            error = (pattern.dense() - weight).abs().amax((1, 3))
            if part == "encoder" or parts is ENCODER:
                error = error[arguments["attention_mask"].bool()]
            assert error.max() < 1e-5
    if parts is not ENCODER:  # indexing means the decoder's own
        assert recording[0].shape == (2, H, 13, 13)


def test_speech_to_text():
    config = hf.Speech2TextConfig(
        max_source_positions=64,
        max_target_positions=64,
        input_feat_per_channel=17,
        conv_channels=22,
        num_conv_layers=1,
        conv_kernel_sizes=[5],
        **BART,
    )
    torch.manual_seed(1)
    arguments = {
        "input_features": torch.randn(2, 38, 17),
        "decoder_input_ids": ids(padded=False, length=13)["input_ids"],
    }
    eager, ours = (
        build(hf.Speech2TextForConditionalGeneration, config, how) for how in ("eager", "regard")
    )
    with torch.no_grad():
        expected = eager(**arguments, output_attentions=True)
        assert (ours(**arguments).logits - expected.logits).abs().max() < NEAR
        with regard.record(eager) as recording:
            eager(**arguments)
    for kind, attribute in BOTH:
        for pattern, weight in zip(recording.of_kind(kind), expected[attribute], strict=True):
            assert (pattern.dense() - weight).abs().max() < 1e-5


# What None means


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("set_later", [False, True])
def test_splinter_sees_both_ways(padded, set_later):
    kind, config, _ = SPLINTER
    arguments = ids(padded)
    model = build(kind, config, "eager" if set_later else "regard")
    if set_later:
        model.set_attn_implementation("regard")
        assert model.config._attn_implementation == "regard"
    with torch.no_grad():
        out = model(**arguments).last_hidden_state
        expected = build(kind, config, "eager")(**arguments).last_hidden_state
        arguments["input_ids"][0, -1] = 7
        assert not torch.allclose(model(**arguments).last_hidden_state[0, 0], out[0, 0])
    assert (out - expected)[arguments["attention_mask"].bool()].abs().max() < NEAR


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("is_causal", [True, False])
def test_a_decoder_may_be_made_to_see_both_ways(is_causal, padded):
    config = hf.LlamaConfig(**GROUPED)
    config.is_causal = is_causal
    arguments = ids(padded)
    assert difference(hf.LlamaModel, config, arguments) < NEAR
    with torch.no_grad():
        model = build(hf.LlamaModel, config, "regard")
        before = model(**arguments).last_hidden_state[0, 0]
        arguments["input_ids"][0, -1] = 7
        after = model(**arguments).last_hidden_state[0, 0]
    assert torch.equal(before, after) == is_causal


@pytest.mark.parametrize("groups", [1, 2, None])
@pytest.mark.parametrize("how", ["sdpa", "eager"])
def test_one_key_for_all_heads_is_one_pattern_over_a_generation(how, groups):
    # The model goes by multi_query alone.
    config = hf.GPTBigCodeConfig(**GPT2, multi_query=True, num_key_value_heads=groups)
    model = build(hf.GPTBigCodeForCausalLM, config, how)
    options = {"do_sample": False, "max_new_tokens": 5, "min_new_tokens": 5}
    prompt = ids(padded=False, length=8)
    prompt["attention_mask"][1, :3] = 0  # a mask, with which SDPA is called in another way
    with regard.record(model) as recording:
        out = model.generate(**prompt, **options)
    keep = torch.nn.functional.pad(prompt["attention_mask"], (0, 4), value=1)
    with torch.no_grad():
        expected = build(hf.GPTBigCodeForCausalLM, config, "eager")(
            out[:, :-1],
            attention_mask=keep,
            position_ids=(keep.cumsum(-1) - 1).clamp(min=0),
            output_attentions=True,
            use_cache=False,
        ).attentions
    assert [layer.index for layer in recording.layers] == [0, 1]
    for pattern, weight in zip(recording, expected, strict=True):
        assert pattern.shape == weight.shape == (2, H, 12, 12)
        assert (pattern.dense() - weight).abs().amax((1, 3))[keep.bool()].max() < 1e-5


def test_a_layer_that_weighs_two_values_alike_has_one_pattern_over_a_generation():
    kind, config, _ = SERVED["diffllama"]
    for how in ("sdpa", "eager"):
        model = build(kind, config, how)
        with regard.record(model) as recording:
            model.generate(**ids(padded=False, length=8), do_sample=False, max_new_tokens=5)
        assert [pattern.shape for pattern in recording] == [(2, H, 12, 12)] * 2


def test_wavlm_is_seen_without_the_model():
    """It calls torch's multi-head attention, whose weights transformers averages over heads."""
    model = build(hf.WavLMModel, hf.WavLMConfig(**PLAIN | WAVES), "eager")
    torch.manual_seed(1)
    wave = torch.randn(2, 501)
    with torch.no_grad():
        weights = model(wave, output_attentions=True).attentions
        with regard.record() as recording:
            model(wave)
    for pattern, weight in zip(recording, weights, strict=True):
        mean = pattern.dense().mean(1, keepdim=True)
        assert (mean - weight).abs().max() < 1e-5
