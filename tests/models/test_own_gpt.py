"""A model of Llama's shape as our own GPT: the same logits, or a refusal that says why."""

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GemmaConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from regard.errors import Error
from regard.gpt import Sampling
from regard.models import LanguageModel
from regard.models.own_gpt import own_gpt

SIZE = {
    "vocab_size": 53,
    "hidden_size": 24,
    "intermediate_size": 29,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 89,
    "tie_word_embeddings": True,
}


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 23,
}


def opened(config):
    """A model of random weights, with norms and biases that are not 1 and 0."""
    torch.manual_seed(5)
    module = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            spread = 0.3 if parameter.ndim < 2 else 0.1
            parameter.add_(spread * torch.randn_like(parameter))
    words = {f"w{number}": number for number in range(SIZE["vocab_size"])}
    inner = Tokenizer(models.WordLevel(words, unk_token="w0"))
    return LanguageModel(module, PreTrainedTokenizerFast(tokenizer_object=inner), name="random")


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**SIZE, rms_norm_eps=0.02),
        Qwen2Config(**SIZE),
        Qwen3Config(**SIZE, head_dim=4),
        MistralConfig(**SIZE | {"max_position_embeddings": 211}, sliding_window=61),
        Qwen3Config(**SIZE | {"tie_word_embeddings": False}, head_dim=10),
        LlamaConfig(**SIZE, rope_parameters=LLAMA3),
        LlamaConfig(**SIZE, rope_parameters=LLAMA3 | {"rope_type": "linear"}),
        GemmaConfig(**SIZE, head_dim=10),
    ],
    ids=lambda config: config.model_type,
)
def test_a_model_of_llamas_shape_computes_the_same(config):
    model = opened(config)
    gpt = own_gpt(model)
    ids = torch.randint(53, (gpt.config.context,), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = model.module.double()(ids[None]).logits[0]
        # Both in float64, but transformers rotates by cosines of float32.
        torch.testing.assert_close(gpt.double()(ids), expected, rtol=0, atol=2e-6)
    assert gpt.config.context == min(filter(None, (89, getattr(config, "sliding_window", None))))
    assert not gpt.training


@pytest.mark.parametrize("weights", [None, "int8"])
def test_a_model_of_llamas_shape_generates_by_an_engine(weights):
    model = opened(LlamaConfig(**SIZE, eos_token_id=[7, 11]))
    gpt = model.as_gpt(weights=weights)
    assert gpt.module.has_int8_weights == (weights == "int8")
    assert not gpt.is_own
    assert gpt.ends == model.ends == {7, 11}
    greedy = Sampling(temperature=0.0)
    ids = [3, 1, 4, 1, 5]
    drawn = list(gpt.stream(ids, tokens=17, sampling=greedy))
    with torch.no_grad():
        for token in drawn:
            logits = gpt.module(torch.tensor(ids))[-1]
            assert logits[token] > logits.max() - 1e-4  # of sums in another order
            ids.append(token)
    assert len(ids) == 22
    if weights is None:
        assert drawn[:5] == list(model.stream(ids[:5], tokens=5, sampling=greedy))


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (
            LlamaConfig(
                **SIZE, rope_parameters={"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4}
            ),
            "rotary positions are of type yarn",
        ),
        (LlamaConfig(**SIZE, hidden_act="gelu"), "computes something else"),
        (Gemma2Config(**SIZE, head_dim=4), "pre_feedforward_layernorm"),
    ],
)
def test_another_shape_is_refused_by_what_differs(config, why):
    with pytest.raises(Error, match=why):
        own_gpt(opened(config))
