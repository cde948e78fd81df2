"""Small models of real classes, and where their weights come out."""

import copy
import operator
from dataclasses import dataclass, field

import torch
import transformers as hf
from record.models.inputs import (
    EXPERTS,
    GROUPED,
    INPUTS,
    PLAIN,
    SOURCE,
    TOKENS,
    VISION,
    WINDOWS,
    G,
    H,
)

import regard


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model class, its sizes, and where its weights are."""

    model: type
    config: object
    inputs: str = "left"
    outputs: tuple = (("self", "attentions", ""),)
    """Kinds, where eager attention puts their weights, and how the names of their layers begin."""
    layers: dict = field(default_factory=lambda: {"self": 2})
    groups: int = H
    implementations: tuple = ("sdpa", "eager")

    def build(self, implementation="sdpa", seed=0):
        """Make the model with random weights."""
        torch.manual_seed(seed)
        config = copy.deepcopy(self.config)
        config._attn_implementation = implementation
        return randomize(self.model(config)).eval()

    def call(self, **changed):
        """Arguments for the model, and which rows are no padding, ``(B, L)``."""
        torch.manual_seed(1)
        arguments, real = INPUTS[self.inputs](self.config)
        return {**arguments, **changed}, real


def randomize(model):
    """Draw weights that give patterns far from uniform."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=parameter[0].numel() ** -0.5)
            else:
                parameter.add_(torch.randn_like(parameter) / 10)
    return model


def record(case, implementation="eager"):
    """Record a forward pass; give the model, the recording, and which rows are no padding."""
    model, (arguments, real) = case.build(implementation), case.call()
    with torch.no_grad(), regard.record(model) as recording:
        model(**arguments)
    return model, recording, real


def weights_of(case, out):
    """Yield kind, beginning of names and weights of each part of a model's eager attention."""
    for kind, where, prefix in case.outputs:
        yield kind, prefix, operator.attrgetter(where)(out)


BOTH = (
    ("encoder", "encoder_attentions", ""),
    ("self", "decoder_attentions", ""),
    ("cross", "cross_attentions", ""),
)
BOTH_LAYERS = {"encoder": 2, "self": 3, "cross": 3}


def decoder(name, base=GROUPED, *, groups=G, implementations=("sdpa", "eager"), **options):
    """A causal model by the name of its class, with options beside those of its kind."""
    config = getattr(hf, f"{name}Config")(**base | options)
    model = getattr(hf, f"{name}ForCausalLM")
    return Case(model=model, config=config, groups=groups, implementations=implementations)


def encoder(name, base=PLAIN, *, inputs="right", layers=2, **options):
    """A model without a head by the name of its class."""
    config = getattr(hf, f"{name}Config")(**base | options)
    return Case(
        model=getattr(hf, f"{name}Model"), config=config, inputs=inputs, layers={"self": layers}
    )


BART = {
    "d_model": 42,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": H,
    "decoder_attention_heads": H,
    "encoder_ffn_dim": 53,
    "decoder_ffn_dim": 59,
    **TOKENS,
    "decoder_start_token_id": 1,
}
T5 = {
    "d_model": 42,
    "d_kv": 11,
    "d_ff": 53,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": H,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    **TOKENS,
    "decoder_start_token_id": 0,
}
GPT2 = {"n_layer": 2, "n_head": H, "n_embd": 42, "n_positions": 64, **TOKENS}
WAVES = {"conv_dim": [13, 17], "conv_stride": [5, 2], "conv_kernel": [5, 3]} | {
    "num_conv_pos_embeddings": 6,
    "num_conv_pos_embedding_groups": 2,
}
GEMMA2 = {"attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 11, **WINDOWS}
EAGER, SDPA = ("eager",), ("sdpa",)
CASES = {
    # decoders
    "gpt2": Case(model=hf.GPT2LMHeadModel, config=hf.GPT2Config(**GPT2)),
    "gpt2, scaled by layer": Case(
        model=hf.GPT2LMHeadModel,
        config=hf.GPT2Config(
            **GPT2, scale_attn_by_inverse_layer_idx=True, reorder_and_upcast_attn=False
        ),
    ),
    "gpt_bigcode": decoder("GPTBigCode", GPT2, groups=1, multi_query=True),
    "gpt_neox": decoder("GPTNeoX", PLAIN, groups=H, hidden_size=84),
    "opt": decoder("OPT", PLAIN, groups=H, ffn_dim=53, word_embed_proj_dim=42),
    "llama": decoder("Llama"),
    "mistral": decoder("Mistral", sliding_window=5),
    "mixtral": decoder("Mixtral", **EXPERTS, num_local_experts=3),
    "qwen2": decoder("Qwen2", use_sliding_window=True, **WINDOWS),
    "qwen3": decoder("Qwen3"),
    "phi": decoder("Phi", PLAIN, groups=H, hidden_size=96),
    "phi3": decoder("Phi3", hidden_size=84, sliding_window=7),
    "gemma2": decoder("Gemma2", implementations=EAGER, **GEMMA2),
    "gemma3": Case(
        model=hf.Gemma3ForCausalLM,
        config=hf.Gemma3TextConfig(**GROUPED, query_pre_attn_scalar=11, **WINDOWS),
        groups=G,
    ),
    "gpt_oss": decoder(
        "GptOss",
        implementations=EAGER,
        **EXPERTS,
        num_local_experts=3,
        num_experts_per_tok=2,
        **WINDOWS,
    ),
    "cohere": decoder("Cohere", hidden_size=84, use_qk_norm=True),
    "cohere2": decoder("Cohere2", hidden_size=84, **WINDOWS),
    "granite": decoder("Granite", hidden_size=84, attention_multiplier=0.31),
    "olmo2": decoder("Olmo2", hidden_size=84),
    "starcoder2": decoder("Starcoder2", hidden_size=84, sliding_window=7),
    "smollm3": decoder("SmolLM3", no_rope_layers=[0, 1]),
    "llama4": Case(
        model=hf.Llama4ForCausalLM,
        config=hf.Llama4TextConfig(
            **GROUPED,
            attention_chunk_size=11,
            layer_types=["chunked_attention", "full_attention"],
            no_rope_layers=[1, 0],
            num_local_experts=2,
            intermediate_size_mlp=53,
        ),
        groups=G,
    ),
    "deepseek_v3": decoder(
        "DeepseekV3",
        PLAIN | EXPERTS,
        groups=H,
        num_key_value_heads=H,
        kv_lora_rank=13,
        q_lora_rank=17,
        qk_rope_head_dim=8,
        qk_nope_head_dim=14,
        v_head_dim=11,
        n_routed_experts=4,
        n_group=2,
        topk_group=1,
        num_experts_per_tok=2,
        moe_intermediate_size=20,
        first_k_dense_replace=1,
    ),
    "falcon": decoder("Falcon", PLAIN, groups=1, implementations=SDPA, hidden_size=84, alibi=False),
    "falcon, alibi": decoder(
        "Falcon",
        PLAIN,
        groups=H,
        implementations=SDPA,
        hidden_size=84,
        alibi=True,
        multi_query=False,
    ),
    # encoders
    "bert": encoder("Bert"),
    "roberta": Case(model=hf.RobertaForMaskedLM, config=hf.RobertaConfig(**PLAIN), inputs="right"),
    "electra": encoder("Electra"),
    "albert": encoder("Albert", embedding_size=19),
    "distilbert": encoder(
        "DistilBert",
        TOKENS,
        dim=42,
        hidden_dim=53,
        n_layers=2,
        n_heads=H,
        max_position_embeddings=64,
    ),
    "modernbert": encoder(
        "ModernBert",
        hidden_size=84,
        layer_types=["full_attention", "sliding_attention"],
        local_attention=10,
    ),
    "vit": encoder("ViT", VISION, inputs="picture"),
    "dinov2": encoder("Dinov2", VISION, inputs="picture"),
    # The pooling at the end attends too, by torch's own module.
    "siglip, vision": encoder("SiglipVision", VISION, inputs="picture", layers=3),
    "beit": encoder("Beit", VISION, inputs="picture", use_relative_position_bias=True),
    "wav2vec2": encoder("Wav2Vec2", PLAIN | WAVES, inputs="wave", apply_spec_augment=False),
    "clip": Case(
        model=hf.CLIPModel,
        config=hf.CLIPConfig(
            text_config=dict(PLAIN), vision_config=dict(VISION), projection_dim=23
        ),
        inputs="picture and text",
        outputs=(
            ("self", "text_model_output.attentions", "text_model"),
            ("self", "vision_model_output.attentions", "vision_model"),
        ),
        layers={"self": 4},
    ),
    # a decoder that attends to a source, and encoders with decoders
    "bert, decoder": Case(
        model=hf.BertLMHeadModel,
        config=hf.BertConfig(**PLAIN, is_decoder=True, add_cross_attention=True),
        inputs="source",
        outputs=(("self", "attentions", ""), ("cross", "cross_attentions", "")),
        layers={"self": 2, "cross": 2},
    ),
    "t5": Case(
        model=hf.T5ForConditionalGeneration,
        config=hf.T5Config(**T5),
        inputs="both",
        outputs=BOTH,
        layers={"encoder": 3, "self": 2, "cross": 2},
    ),
    "t5gemma": Case(
        model=hf.T5GemmaForConditionalGeneration,
        config=hf.T5GemmaConfig(encoder=GROUPED | GEMMA2, decoder=GROUPED | GEMMA2, **TOKENS),
        inputs="both",
        outputs=BOTH,
        layers={"encoder": 2, "self": 2, "cross": 2},
        groups=G,
        implementations=("eager",),
    ),
    "bart": Case(
        model=hf.BartForConditionalGeneration,
        config=hf.BartConfig(max_position_embeddings=64, **BART),
        inputs="both",
        outputs=BOTH,
        layers=BOTH_LAYERS,
    ),
    "whisper": Case(
        model=hf.WhisperForConditionalGeneration,
        config=hf.WhisperConfig(
            num_mel_bins=17, max_source_positions=SOURCE, max_target_positions=64, **BART
        ),
        inputs="sound",
        outputs=BOTH,
        layers=BOTH_LAYERS,
    ),
}
