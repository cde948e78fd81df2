"""Small models of transformers with tokenizers of their own, in folders and as GGUF."""

import pytest
import torch
import transformers as hf
from support import small_models

TEXT = "the cat sat on the mat, the dog sat on the cat — naïvely 你好. "
SIZES = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 61,
    "initializer_range": 0.4,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def fast_tokenizer(template=None):
    """A byte-level BPE, as of GPT-2 and most later models."""
    fast = small_models.tokenizer(TEXT, template=template)
    fast.eos_token = "</s>"
    return fast


def llama(tokenizer, **changed):
    torch.manual_seed(0)
    return hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=len(tokenizer), **SIZES | changed)).eval()


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A random Llama of 3 layers × 6 heads with a chat template."""
    path = tmp_path_factory.mktemp("llama") / "small"
    return small_models.save_llama(path, fast_tokenizer(small_models.CHAT), **SIZES)


@pytest.fixture(scope="session")
def encoder(tmp_path_factory):
    path = tmp_path_factory.mktemp("bert") / "small"
    tokenizer = fast_tokenizer()
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    torch.manual_seed(0)
    config = hf.BertConfig(vocab_size=len(tokenizer), **{name: SIZES[name] for name in names})
    hf.BertModel(config, add_pooling_layer=False).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def gguf_file(tmp_path_factory):
    """The same Llama as a GGUF, the matrices of its MLPs in float16, with its tokenizer."""
    import gguf

    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    tokenizer = fast_tokenizer()
    model = llama(tokenizer)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(SIZES["num_hidden_layers"])
    writer.add_context_length(SIZES["max_position_embeddings"])
    writer.add_embedding_length(SIZES["hidden_size"])
    writer.add_feed_forward_length(SIZES["intermediate_size"])
    writer.add_head_count(SIZES["num_attention_heads"])
    writer.add_head_count_kv(SIZES["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokenizer))
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1])
    merges = tokenizer.backend_tokenizer.to_str()
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_types([3 if number < 2 else 1 for _, number in vocabulary])
    writer.add_token_merges(_merges(merges))
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, SIZES["num_hidden_layers"])
    for name, weight in model.state_dict().items():
        heads = {"q_proj": SIZES["num_attention_heads"], "k_proj": SIZES["num_key_value_heads"]}
        own = next((count for part, count in heads.items() if part in name), None)
        stored = weight
        if own is not None:  # llama.cpp rotates pairs that lie side by side
            stored = weight.view(own, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
        if "mlp" in name:
            stored = stored.half()
        base, _, suffix = name.rpartition(".")
        writer.add_tensor(f"{names.get_name(base)}.{suffix}", stored.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _merges(text):
    import json

    return [" ".join(pair) for pair in json.loads(text)["model"]["merges"]]
