"""A small Gemma 4, whose last layers attend to keys of earlier ones."""

import pytest
import torch
from record.models.classes import randomize

PROMPT, NEW = 9, 6  # both beyond the window of some layers


def gemma_4(how="sdpa"):
    """Where it computes the last logits alone, it leaves out queries of its last two layers."""
    hf = pytest.importorskip("transformers")
    if not hasattr(hf, "Gemma4TextConfig"):
        pytest.skip("needs a transformers with Gemma 4")
    config = hf.Gemma4TextConfig(
        vocab_size=37, hidden_size=24, intermediate_size=32, num_hidden_layers=5,
        num_attention_heads=4, num_key_value_heads=2, head_dim=6, global_head_dim=6,
        num_kv_shared_layers=2, sliding_window=5, hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=37, bos_token_id=1, eos_token_id=None, pad_token_id=0,
        layer_types=["sliding_attention", *2 * ["full_attention"], "sliding_attention",
        "full_attention"], attn_implementation=how,
    )  # fmt: skip
    torch.manual_seed(0)
    return randomize(hf.Gemma4ForCausalLM(config)).eval()


def prompt(tokens=PROMPT):
    torch.manual_seed(2)
    return torch.randint(3, 37, (1, tokens))


def generate(model, ids, new=NEW, **options):
    return model.generate(ids, max_new_tokens=new, do_sample=False, **options)
