"""Models whose heads have circuits, and those circuits as dense products in float64."""

import pytest
import torch

from regard.gpt import GPT, GPTConfig

# Between results in float64: a few hundred terms of size about one, each rounded at 1e-16, and
# eigenvalues that are conditioned well enough.
EXACT = {"rtol": 1e-10, "atol": 1e-10}
# Where a model's own float32 takes part: a hundred roundings at 1e-7.
SINGLE = {"rtol": 1e-5, "atol": 1e-5}


def randomize(model):
    """Draw all weights in the same size, biases included, which must not matter."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model.eval()


def our_gpt():
    return randomize(GPT(GPTConfig(vocab_size=29, context=13, layers=2, heads=5, dim=35)))


def gpt2():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=29, n_positions=13, n_embd=33, n_layer=2, n_head=3)
    return randomize(transformers.GPT2LMHeadModel(config))


def llama_like(name, **options):
    """Grouped heads, and H·D = 48 beside E = 30."""
    transformers = pytest.importorskip("transformers")
    sizes = {
        "vocab_size": 29,
        "hidden_size": 30,
        "intermediate_size": 31,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "head_dim": 8,
        "max_position_embeddings": 17,
        "pad_token_id": 0,
    }
    config = getattr(transformers, f"{name}Config")(**sizes | options)
    return randomize(getattr(transformers, f"{name}ForCausalLM")(config))


def llama(**options):
    return llama_like("Llama", tie_word_embeddings=False, **options)


MODELS = {
    "gpt": our_gpt,
    "gpt2": gpt2,
    "llama": llama,
    "mistral": lambda: llama_like("Mistral"),
    "gemma": lambda: llama_like("Gemma"),
    # Qwen2 has biases and no head_dim of its own: it reads E/H without one.
    "qwen2": lambda: llama_like("Qwen2", hidden_size=24, head_dim=4),
}


HEADS = {"gpt": 5, "gpt2": 3, "llama": 6, "mistral": 6, "gemma": 6, "qwen2": 6}


def dense(model, layer, head):
    """Query, key and value (E, D), output (D, E) and embedding (V, E), by name, in float64."""
    at = {name: weight.detach().double() for name, weight in model.named_parameters()}
    if isinstance(model, GPT):
        size, block = 7, f"h.{layer}.attn"
        own = torch.arange(head * size, (head + 1) * size)
        three = at[f"{block}.c_attn.weight"]
        query, key, value = (three[part * 35 + own].T for part in range(3))
        return query, key, value, at[f"{block}.c_proj.weight"][:, own].T, at["wte.weight"]
    if hasattr(model, "transformer"):
        size, block = 11, f"transformer.h.{layer}.attn"
        own = torch.arange(head * size, (head + 1) * size)
        three = at[f"{block}.c_attn.weight"]
        query, key, value = (three[:, part * 33 + own] for part in range(3))
        return query, key, value, at[f"{block}.c_proj.weight"][own], at["transformer.wte.weight"]
    size, block = getattr(model.config, "head_dim", 4), f"model.layers.{layer}.self_attn"
    own = torch.arange(head * size, (head + 1) * size)
    shared = torch.arange(head // 2 * size, (head // 2 + 1) * size)
    query = at[f"{block}.q_proj.weight"][own].T
    key, value = (at[f"{block}.{name}_proj.weight"][shared].T for name in "kv")
    output = at[f"{block}.o_proj.weight"][:, own].T
    return query, key, value, output, at["model.embed_tokens.weight"]
