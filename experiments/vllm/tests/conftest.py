"""Small models of random weights, and engines of vLLM that serve them."""

import gc
import os

os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["VLLM_NO_USAGE_STATS"] = "1"
os.environ["VLLM_LOGGING_LEVEL"] = "WARNING"

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from vllm import LLM

WORDS = 97
COMMON = {"vocab_size": WORDS, "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": False}
GROUPED = {
    "hidden_size": 96,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(head_dim=32, **GROUPED, **COMMON),
    "mistral": lambda: transformers.MistralConfig(
        head_dim=32, sliding_window=41, **GROUPED, **COMMON
    ),
    "gpt2": lambda: transformers.GPT2Config(
        n_positions=512, n_embd=96, n_layer=2, n_head=3, initializer_range=0.2, **COMMON
    ),
}


def write_model(folder, kind):
    """Write a model as vLLM and transformers read it, with a tokenizer of a word a token."""
    torch.manual_seed(0)
    vocabulary = {f"w{number}": number for number in range(WORDS - 1)} | {"<unk>": WORDS - 1}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", bos_token="w0", eos_token="w1"
    )
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }} {% endfor %}"
    transformers.AutoModelForCausalLM.from_config(CONFIGS[kind]()).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """The folder of a model, by its kind."""
    folders = {}

    def folder_of(kind):
        if kind not in folders:
            folders[kind] = tmp_path_factory.mktemp(kind)
            write_model(folders[kind], kind)
        return folders[kind]

    return folder_of


@pytest.fixture(scope="module")
def start():
    """Start engines, of which one runs at a time."""
    running = []

    def started(folder, **options):
        running.clear()
        gc.collect()
        settings = {"max_model_len": 256, "max_num_seqs": 8, "seed": 0, "enforce_eager": True}
        running.append(LLM(str(folder), **(settings | options)))
        return running[-1]

    yield started
    running.clear()
    gc.collect()
