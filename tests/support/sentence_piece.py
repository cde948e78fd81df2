"""A tokenizer as Llama 2 has it: characters, their merges, and bytes for all others."""

import json
from functools import cache

from tokenizers import Tokenizer, decoders, models, normalizers, processors, trainers

from regard.page.file.live_folder import PASSAGE

SPECIAL = ["<unk>", "<s>", "</s>"]


@cache
def sentence_piece(size: int = 401) -> Tokenizer:
    """Return one trained on a page of English, which begins every text with ``<s>``."""
    spaces = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained = Tokenizer(models.BPE())
    trained.normalizer = spaces
    words = [f" {word}" for word in PASSAGE.split()]  # else whole sentences would become tokens
    count = size - len(SPECIAL) - 256
    trained.train_from_iterator(words, trainers.BpeTrainer(vocab_size=count, show_progress=False))
    pieces = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    own = trained.get_vocab()
    pieces += sorted(own, key=own.__getitem__)
    merges = [tuple(pair) for pair in json.loads(trained.to_str())["model"]["merges"]]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    model = models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    result = Tokenizer(model)
    result.normalizer = spaces
    result.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    result.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    result.add_special_tokens(SPECIAL)
    return result
