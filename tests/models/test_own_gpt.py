"""A model of Llama's shape as our own GPT: the same logits, or a refusal that says why."""

import copy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.blocks import drawn_blocks
from tokenizers import Tokenizer, models
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Phi3Config,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    StableLmConfig,
)

import regard
from regard.errors import Error
from regard.gpt import Engine, GPTCache, Sampling
from regard.models import LanguageModel
from regard.models.gguf_blocks import place_blocks
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
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 8.0,
    "original_max_position_embeddings": 11,
}
# A window that ends within the texts, caps that bend most numbers, a scale that is not 1/√D; of the
# third, layers with a window have other positions than those without one, which are stretched.
GEMMA_2 = Gemma2Config(
    **SIZE,
    head_dim=10,
    query_pre_attn_scalar=7,
    sliding_window=13,
    attn_logit_softcapping=0.5,
    final_logit_softcapping=0.7,
)
GEMMA_3 = Gemma3TextConfig(
    **SIZE,
    head_dim=10,
    query_pre_attn_scalar=3,
    sliding_window=13,
    layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    rope_parameters={
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 1e3, "factor": 8.0},
    },
)

# Of 10 channels 4 rotate.
PART = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.4}
WIDE = SIZE | {"hidden_size": 60}


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
        LlamaConfig(**SIZE, rope_parameters=YARN),
        LlamaConfig(**SIZE, rope_parameters=YARN | {"rope_type": "dynamic"}),
        GemmaConfig(**SIZE, head_dim=10),
        GEMMA_2,
        GEMMA_3,
        LlamaConfig(**SIZE, rope_parameters=YARN, attention_bias=True),
        Qwen3Config(**SIZE, head_dim=10, rope_parameters=YARN),
        StableLmConfig(**WIDE, rope_parameters=PART, use_qkv_bias=True),
        StableLmConfig(**WIDE, rope_parameters=PART | YARN),
        Phi3Config(**WIDE, rope_parameters=PART, pad_token_id=0),
    ],
    ids=lambda config: config.model_type,
)
def test_a_model_of_llamas_shape_computes_the_same(config):
    model = opened(config)
    gpt = own_gpt(model)
    ids = torch.randint(53, (gpt.config.context,), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = model.module.double()(ids[None]).logits[0]
        # Both in float64, but transformers rotates by cosines of float32, and Gemma's norms and
        # weights are float32.
        torch.testing.assert_close(gpt.double()(ids), expected, rtol=0, atol=4e-6)
    assert gpt.config.context == config.max_position_embeddings
    assert not gpt.training


def test_a_model_in_half_precision_is_refused_for_that():
    model = opened(LlamaConfig(**SIZE))
    model.module.to(torch.bfloat16)
    with pytest.raises(Error, match=r"is in bfloat16, .* open it in float32"):
        own_gpt(model)


@pytest.mark.parametrize("config", [GEMMA_2, GEMMA_3], ids=["2", "3"])
@pytest.mark.parametrize("weights", [None, "int8"])
def test_gemma_2_and_3_generate_by_an_engine(config, weights):
    """Two batches of tokens, the second longer than the window, then one token after another."""
    model = opened(config)
    gpt = model.as_gpt(weights=weights)
    assert all(check.holds for check in gpt.checks)
    readouts = regard.readouts.Entropy(), regard.readouts.TopK(2)
    engine, cache = Engine(gpt.module, read=readouts), GPTCache(gpt.module.config)
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(53, (3, 37), generator=generator)
    reference = model.module.double() if weights is None else gpt.module.double()
    for start, stop in [(0, 7), (7, 23), *((end - 1, end) for end in range(24, 38))]:
        logits = engine.next_logits(ids[:, start:stop], cache)
        with torch.no_grad(), regard.record(reference, rows=-1) as recording:
            expected = reference(ids[:, :stop])
        expected = expected[:, -1] if weights else expected.logits[:, -1]
        # In float32 transformers itself is off by up to 33 ε: queries and keys with norms weigh few
        # keys, and the difference of two scores has the roundings of both.
        most = 60 * torch.finfo(torch.float32).eps * expected.abs().max()
        torch.testing.assert_close(logits.double(), expected, rtol=0, atol=float(most))
        for (entropy, (weights_of_keys, _)), pattern in zip(
            engine.readings, recording, strict=True
        ):
            own_entropy, (own_weights, _) = pattern.read(*readouts)
            torch.testing.assert_close(entropy.double(), own_entropy, rtol=0, atol=1e-5)
            torch.testing.assert_close(weights_of_keys.double(), own_weights, rtol=0, atol=5e-6)


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
            Qwen3Config(
                **SIZE,
                rope_parameters=YARN
                | {"rope_type": "longrope", "long_factor": [1.0] * 2, "short_factor": [1.0] * 2},
                head_dim=4,
            ),
            "rotary positions are of type longrope",
        ),
        (LlamaConfig(**SIZE, hidden_act="gelu"), "computes something else"),
        (
            Gemma3TextConfig(
                **SIZE | {"num_hidden_layers": 4},
                layer_types=["full_attention"] + 3 * ["sliding_attention"],
            ),
            "layers with a window have other rotary positions: which are not all but every n-th",
        ),
        (Olmo2Config(**SIZE), "post_feedforward_layernorm"),
        (CohereConfig(**SIZE), "configuration has no rms_norm_eps"),
    ],
)
def test_another_shape_is_refused_by_what_differs(config, why):
    with pytest.raises(Error, match=why):
        own_gpt(opened(config))


@pytest.mark.parametrize(
    "config",
    [
        GemmaConfig(**SIZE),
        GEMMA_2,
        GEMMA_3,
        Qwen3Config(**SIZE, rope_parameters=YARN),
    ],
    ids=lambda config: config.model_type,
)
def test_a_model_in_blocks_generates_by_an_engine(config):
    """Gemma's embeddings are multiplied, and its head is the embedding; YaRN's factor is norms'."""
    config = copy.deepcopy(config)  # of matrices of whole blocks
    config.hidden_size, config.intermediate_size, config.head_dim = 64, 96, 16
    model = opened(config)
    draw = torch.Generator().manual_seed(3)
    stored = [
        Stored(name, drawn_blocks(8, *weight.shape, draw))
        for name, weight in model.module.state_dict().items()
        if weight.ndim == 2 and name != "lm_head.weight"
    ]
    names = {one.name: one.name for one in stored}
    assert place_blocks(model.module, stored, names, unchanged, Path("any.gguf")) == []
    gpt = own_gpt(model)
    assert gpt.weights == "blocks"
    ids = torch.randint(53, (1, 37), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = model.module(ids).logits[0]
        torch.testing.assert_close(gpt(ids)[0], expected, rtol=0, atol=float(1e-4 * expected.std()))
        engine, cache = Engine(gpt), GPTCache(gpt.config)
        steps = torch.cat([engine.next_logits(ids[:, t : t + 1], cache) for t in range(37)])
    # Inputs of 13 maps are rounded to 16 bits, which makes some 11·2⁻¹⁷ of the spread, and norms of
    # outputs that are small enlarge it: 2⁻¹². Another formula makes 0.1.
    assert (steps - expected).square().mean().sqrt() < 2**-12 * expected.std()


def unchanged(weights, name):
    """The numbers of a tensor as they are, as transformers returns what it makes of them."""
    return SimpleNamespace(weights=weights)


class Stored:
    """A tensor of a GGUF."""

    def __init__(self, name, blocks):
        ((self.type, self._rows),) = blocks.parts
        self.name, self.shape = name, blocks.shape

    def read_bytes(self, file):
        assert file == Path("any.gguf")
        return self._rows.numpy()
