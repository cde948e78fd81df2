"""Small random models of transformers, each saved in a folder with a tokenizer made for a text.

Every id of a tokenizer is a byte or a merge of two, so that any text can be read.
"""

import json

import torch

CHAT = (
    "{% for turn in messages %}<{{ turn.role }}>{{ turn.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def tokenizer(text, *, template=None, adds=False):
    """A fast tokenizer of at most 300 tokens.

    Args:
        text: what it is trained on.
        template: for conversations.
        adds: whether it begins every text with "<s>", as Llama's does.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([text], trainer)
    if adds:
        made.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
    fast = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>")
    fast.chat_template = template
    return fast


def save_llama(folder, reads, **config):
    """Save a Llama of 2 layers × 3 heads and a context of 101, and its tokenizer.

    Args:
        folder: where to.
        reads: its tokenizer.
        config: what differs.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {
        "vocab_size": len(reads), "hidden_size": 24, "intermediate_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 3,
        "max_position_embeddings": 101, "initializer_range": 0.5,
        "bos_token_id": 0, "eos_token_id": None,
    }  # fmt: skip
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**{**shape, **config})).save_pretrained(folder)
    reads.save_pretrained(folder)
    return folder


def save_bert(folder, reads):
    """Save an encoder of 2 layers × 3 heads and a context of 101, and its tokenizer."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=len(reads), hidden_size=21, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=3, max_position_embeddings=101,
    )  # fmt: skip
    torch.manual_seed(0)
    BertForMaskedLM(config).save_pretrained(folder)
    reads.save_pretrained(folder)
    return folder


def write_gguf(path, model, tokenizer, kept):
    """Write a Llama; `kept` returns the numbers or bytes of a weight, and their type if bytes."""
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
    merges = tokenizer.backend_tokenizer.to_str()
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_types([3 if number < 2 else 1 for _, number in vocabulary])
    writer.add_token_merges(_merges(merges))
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


def _merges(text):
    return [" ".join(pair) for pair in json.loads(text)["model"]["merges"]]
