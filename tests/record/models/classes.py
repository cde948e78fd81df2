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


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model class, and what is known of it."""

    model: type
    config: object
    inputs: str = "left"
    outputs: tuple = (("self", "attentions", ""),)
    """Kinds, where eager attention puts their weights, and how the names of their layers begin."""
    layers: dict = field(default_factory=lambda: {"self": 2})
    groups: int = H
    implementations: tuple = ("sdpa", "eager")

    def build(self, implementation="sdpa", seed=0):
        """Make the model, with weights that give patterns far from even."""
        torch.manual_seed(seed)
        config = copy.deepcopy(self.config)
        config._attn_implementation = implementation
        model = self.model(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(std=parameter[0].numel() ** -0.5)
                else:
                    parameter.add_(torch.randn_like(parameter) / 10)
        return model

    def call(self, **changed):
        """Arguments for the model, and of what rows are padded, which are real, ``(B, L)``."""
        torch.manual_seed(1)
        arguments, real = INPUTS[self.inputs](self.config)
        return {**arguments, **changed}, real


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


def grouped(**options):
    return {**GROUPED, **options}


def plain(**options):
    return {**PLAIN, **options}


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
T5GEMMA = grouped(attn_logit_softcapping=2.0, query_pre_attn_scalar=11, **WINDOWS)
CASES = {
    # decoders
    "gpt2": Case(
        model=hf.GPT2LMHeadModel,
        config=hf.GPT2Config(n_layer=2, n_head=H, n_embd=42, n_positions=64, **TOKENS),
    ),
    "gpt2, scaled by layer": Case(
        model=hf.GPT2LMHeadModel,
        config=hf.GPT2Config(
            n_layer=2,
            n_head=H,
            n_embd=42,
            n_positions=64,
            scale_attn_by_inverse_layer_idx=True,
            reorder_and_upcast_attn=False,
            **TOKENS,
        ),
    ),
    "gpt_bigcode": Case(
        model=hf.GPTBigCodeForCausalLM,
        config=hf.GPTBigCodeConfig(
            n_layer=2, n_head=H, n_embd=42, n_positions=64, multi_query=True, **TOKENS
        ),
        groups=1,
    ),
    "gpt_neox": Case(model=hf.GPTNeoXForCausalLM, config=hf.GPTNeoXConfig(**plain(hidden_size=84))),
    "opt": Case(
        model=hf.OPTForCausalLM,
        config=hf.OPTConfig(
            hidden_size=42,
            ffn_dim=53,
            num_hidden_layers=2,
            num_attention_heads=H,
            max_position_embeddings=64,
            word_embed_proj_dim=42,
            **TOKENS,
        ),
    ),
    "llama": Case(model=hf.LlamaForCausalLM, config=hf.LlamaConfig(**GROUPED), groups=G),
    "mistral": Case(
        model=hf.MistralForCausalLM,
        config=hf.MistralConfig(**grouped(sliding_window=5)),
        groups=G,
    ),
    "mixtral": Case(
        model=hf.MixtralForCausalLM,
        config=hf.MixtralConfig(**grouped(**EXPERTS, num_local_experts=3)),
        groups=G,
    ),
    "qwen2": Case(
        model=hf.Qwen2ForCausalLM,
        config=hf.Qwen2Config(**grouped(use_sliding_window=True, **WINDOWS)),
        groups=G,
    ),
    "qwen3": Case(model=hf.Qwen3ForCausalLM, config=hf.Qwen3Config(**GROUPED), groups=G),
    "phi": Case(model=hf.PhiForCausalLM, config=hf.PhiConfig(**plain(hidden_size=96))),
    "phi3": Case(
        model=hf.Phi3ForCausalLM,
        config=hf.Phi3Config(**grouped(hidden_size=84, sliding_window=7)),
        groups=G,
    ),
    "gemma2": Case(
        model=hf.Gemma2ForCausalLM,
        config=hf.Gemma2Config(
            **grouped(attn_logit_softcapping=2.0, query_pre_attn_scalar=11, **WINDOWS)
        ),
        groups=G,
        implementations=("eager",),
    ),
    "gemma3": Case(
        model=hf.Gemma3ForCausalLM,
        config=hf.Gemma3TextConfig(**grouped(query_pre_attn_scalar=11, **WINDOWS)),
        groups=G,
    ),
    "gpt_oss": Case(
        model=hf.GptOssForCausalLM,
        config=hf.GptOssConfig(
            **grouped(**EXPERTS, num_local_experts=3, num_experts_per_tok=2, **WINDOWS)
        ),
        groups=G,
        implementations=("eager",),
    ),
    "cohere": Case(
        model=hf.CohereForCausalLM,
        config=hf.CohereConfig(**grouped(hidden_size=84, use_qk_norm=True)),
        groups=G,
    ),
    "cohere2": Case(
        model=hf.Cohere2ForCausalLM,
        config=hf.Cohere2Config(**grouped(hidden_size=84, **WINDOWS)),
        groups=G,
    ),
    "granite": Case(
        model=hf.GraniteForCausalLM,
        config=hf.GraniteConfig(**grouped(hidden_size=84, attention_multiplier=0.31)),
        groups=G,
    ),
    "olmo2": Case(
        model=hf.Olmo2ForCausalLM, config=hf.Olmo2Config(**grouped(hidden_size=84)), groups=G
    ),
    "starcoder2": Case(
        model=hf.Starcoder2ForCausalLM,
        config=hf.Starcoder2Config(**grouped(hidden_size=84, sliding_window=7)),
        groups=G,
    ),
    "smollm3": Case(
        model=hf.SmolLM3ForCausalLM,
        config=hf.SmolLM3Config(**grouped(no_rope_layers=[0, 1])),
        groups=G,
    ),
    "llama4": Case(
        model=hf.Llama4ForCausalLM,
        config=hf.Llama4TextConfig(
            **grouped(
                attention_chunk_size=11,
                layer_types=["chunked_attention", "full_attention"],
                no_rope_layers=[1, 0],
                num_local_experts=2,
                intermediate_size_mlp=53,
            )
        ),
        groups=G,
    ),
    "deepseek_v3": Case(
        model=hf.DeepseekV3ForCausalLM,
        config=hf.DeepseekV3Config(
            **plain(**EXPERTS),
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
    ),
    "falcon": Case(
        model=hf.FalconForCausalLM,
        config=hf.FalconConfig(**plain(hidden_size=84, alibi=False)),
        groups=1,
        implementations=("sdpa",),
    ),
    "falcon, alibi": Case(
        model=hf.FalconForCausalLM,
        config=hf.FalconConfig(**plain(hidden_size=84, alibi=True, multi_query=False)),
        implementations=("sdpa",),
    ),
    # encoders
    "bert": Case(model=hf.BertModel, config=hf.BertConfig(**PLAIN), inputs="right"),
    "roberta": Case(model=hf.RobertaForMaskedLM, config=hf.RobertaConfig(**PLAIN), inputs="right"),
    "electra": Case(model=hf.ElectraModel, config=hf.ElectraConfig(**PLAIN), inputs="right"),
    "albert": Case(
        model=hf.AlbertModel, config=hf.AlbertConfig(embedding_size=19, **PLAIN), inputs="right"
    ),
    "distilbert": Case(
        model=hf.DistilBertModel,
        config=hf.DistilBertConfig(
            dim=42, hidden_dim=53, n_layers=2, n_heads=H, max_position_embeddings=64, **TOKENS
        ),
        inputs="right",
    ),
    "modernbert": Case(
        model=hf.ModernBertModel,
        config=hf.ModernBertConfig(
            **plain(
                hidden_size=84,
                layer_types=["full_attention", "sliding_attention"],
                local_attention=10,
            )
        ),
        inputs="right",
    ),
    "vit": Case(model=hf.ViTModel, config=hf.ViTConfig(**VISION), inputs="picture"),
    "dinov2": Case(model=hf.Dinov2Model, config=hf.Dinov2Config(**VISION), inputs="picture"),
    "siglip, vision": Case(
        model=hf.SiglipVisionModel,
        config=hf.SiglipVisionConfig(**VISION),
        inputs="picture",
        layers={"self": 3},  # the pooling at the end attends too, by torch's own module
    ),
    "beit": Case(
        model=hf.BeitModel,
        config=hf.BeitConfig(**VISION, use_relative_position_bias=True),
        inputs="picture",
    ),
    "wav2vec2": Case(
        model=hf.Wav2Vec2Model,
        config=hf.Wav2Vec2Config(
            **plain(
                conv_dim=[13, 17],
                conv_stride=[5, 2],
                conv_kernel=[5, 3],
                num_conv_pos_embeddings=6,
                num_conv_pos_embedding_groups=2,
                apply_spec_augment=False,
            )
        ),
        inputs="wave",
    ),
    "clip": Case(
        model=hf.CLIPModel,
        config=hf.CLIPConfig(text_config=plain(), vision_config=dict(VISION), projection_dim=23),
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
        config=hf.T5Config(
            d_model=42,
            d_kv=11,
            d_ff=53,
            num_layers=3,
            num_decoder_layers=2,
            num_heads=H,
            relative_attention_num_buckets=8,
            relative_attention_max_distance=20,
            **TOKENS,
            decoder_start_token_id=0,
        ),
        inputs="both",
        outputs=BOTH,
        layers={"encoder": 3, "self": 2, "cross": 2},
    ),
    "t5gemma": Case(
        model=hf.T5GemmaForConditionalGeneration,
        config=hf.T5GemmaConfig(encoder=T5GEMMA, decoder=T5GEMMA, **TOKENS),
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
            num_mel_bins=17,
            max_source_positions=SOURCE,
            max_target_positions=64,
            **BART,
        ),
        inputs="sound",
        outputs=BOTH,
        layers=BOTH_LAYERS,
    ),
}
