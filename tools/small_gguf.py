"""Write a small Llama as a GGUF, for the tests and for the fuzzing of its reader."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Kept = Callable[[str, Any], tuple[Any, Any]]


def write_gguf(path: Path, model: Any, tokenizer: Any, kept: Kept) -> None:
    """Write a Llama of transformers and its tokenizer.

    Args:
        path: of the file.
        model: the Llama.
        tokenizer: a fast one, whose ids are bytes and merges of two; 0 begins a text, 1 ends it.
        kept: returns what the file has of a weight: numbers, or the bytes of blocks and their type.
    """
    import gguf

    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokenizer))
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1])
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_types([3 if number < 2 else 1 for _, number in vocabulary])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        own = next((count for part, count in heads.items() if part in name), None)
        stored = weight
        if own is not None:  # llama.cpp rotates pairs that lie side by side
            stored = weight.view(own, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
        base, _, suffix = name.rpartition(".")
        numbers, kind = kept(name, stored.contiguous())
        writer.add_tensor(f"{names.get_name(base)}.{suffix}", numbers, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
