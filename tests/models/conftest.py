"""Small models of transformers with tokenizers of their own, in folders and as GGUF."""

import pytest
import torch
import transformers as hf
from support import small_models

from small_gguf import write_gguf

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
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    tokenizer = fast_tokenizer()

    def kept(name, weight):
        return (weight.half() if "mlp" in name else weight).numpy(), None

    write_gguf(path, llama(tokenizer), tokenizer, kept)
    return path
