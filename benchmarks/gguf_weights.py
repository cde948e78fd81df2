"""A model of GPT-2's layout as a GGUF file, which llama.cpp reads.

The format keeps a matrix as `nn.Linear` does, a row for each output. The embedding is the head too,
which llama.cpp assumes where a file has no head of its own.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor

from regard.gpt import GPT, GPTConfig
from regard.gpt.int8 import to_int8
from regard.gpt.model_files import to_huge_pages

KINDS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "q8_0": "Q8_0"}
"""What matrices can be kept in, by the name of the format's type."""

_OUTSIDE = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm"}
_OF_BLOCK = {
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """The name of a weight in the file.

    >>> gguf_name("h.3.mlp.c_fc.bias"), gguf_name("wte.weight")
    ('blk.3.ffn_up.bias', 'token_embd.weight')
    """
    module, _, kind = name.rpartition(".")
    if not module.startswith("h."):
        return f"{_OUTSIDE[module]}.{kind}"
    _, layer, module = module.split(".", maxsplit=2)
    return f"blk.{layer}.{_OF_BLOCK[module]}.{kind}"


def gguf_weights(model: GPT) -> dict[str, Tensor]:
    """All weights in float32, by their names in the file.

    Raises:
        ValueError: the model has an option that GPT-2 lacks.
    """
    config = model.config
    plain = GPTConfig(
        vocab_size=config.vocab_size,
        context=config.context,
        layers=config.layers,
        heads=config.heads,
        dim=config.dim,
        dropout=config.dropout,
        initial_std=config.initial_std,
        norm_eps=config.norm_eps,
    )
    if config != plain:
        raise ValueError(f"model has {config}; expected GPT-2's own layout, such as {plain}")
    return {gguf_name(name): p.detach().float() for name, p in model.named_parameters()}


def write_gguf(model: GPT, path: Path, kind: str) -> int:
    """Write the file, without a tokenizer; biases and norms are kept in float32.

    Args:
        model: its weights, in any precision.
        path: where to.
        kind: of the matrices, a key of `KINDS`.

    Returns:
        The bytes of all weights, but for the positions: what a step of generation reads.
    """
    import gguf

    config, weights = model.config, gguf_weights(model)
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.dim)
    writer.add_feed_forward_length(config.hidden_dim)
    writer.add_block_count(config.layers)
    writer.add_head_count(config.heads)
    writer.add_layer_norm_eps(config.norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    size = 0
    for name, weight in weights.items():
        matrix = weight.ndim == 2 and name != "position_embd.weight"
        of_type = gguf.GGMLQuantizationType[KINDS[kind] if matrix else "F32"]
        numbers = gguf.quants.quantize(weight.numpy(), of_type)
        writer.add_tensor(name, numbers, raw_dtype=of_type)
        size += 0 if name == "position_embd.weight" else numbers.nbytes
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return size


def as_int8(model: GPT) -> GPT:
    """The same model with int8 weights."""
    copy = deepcopy(model)
    to_int8(copy)
    to_huge_pages(copy)  # as `load` does
    return copy


def rounded(model: GPT, dtype: torch.dtype) -> GPT:
    """The same model in another precision."""
    copy = GPT(model.config).to(dtype).eval()
    copy.load_state_dict(model.state_dict())
    to_huge_pages(copy)  # as `load` does
    return copy
