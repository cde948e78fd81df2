"""Small random models of transformers, each saved in a folder with a tokenizer made for a text.

Every id of a tokenizer is a byte or a merge of two, so that any text can be read.
"""

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
