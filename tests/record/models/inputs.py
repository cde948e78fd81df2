"""Sizes of small models, and what to call them with.

Every size is a number of its own, so that a swapped axis cannot pass: B 3, H 6, G 2, L 47, S 47
(a source has 31 or 29), V 101, and head dimensions from 7 to 22.
"""

import torch

B, L, SOURCE, V, H, G = 3, 47, 31, 101, 6, 2
PADDED = (0, 5, 17)  # tokens of each sequence that are padding
TOKENS = {"vocab_size": V, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {
    "hidden_size": 42,
    "intermediate_size": 53,
    "num_hidden_layers": 2,
    "num_attention_heads": H,
}
PLAIN = {**SIZES, "max_position_embeddings": 64, **TOKENS}
GROUPED = {**PLAIN, "num_key_value_heads": G, "head_dim": 14}
WINDOWS = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"hidden_size": 44, "intermediate_size": 52}  # their kernel wants multiples of 16 bytes
PICTURE = {"image_size": 21, "patch_size": 3}  # 49 patches
VISION = {**SIZES, **PICTURE}


class Numbers:
    """A tokenizer, as far as names go."""

    def convert_ids_to_tokens(self, ids):
        return [str(i) for i in ids]


def padding(length, side):
    keep = torch.ones(B, length, dtype=torch.int64)
    for sequence, count in zip(keep, PADDED, strict=True):
        where = slice(0, count) if side == "left" else slice(length - count, length)
        sequence[where] = 0
    return keep


def text(length, side):
    keep = padding(length, side)
    ids = torch.randint(3, V, keep.shape) * keep
    return {"input_ids": ids, "attention_mask": keep}


def labels(arguments):
    """What real tokens predict: padding, which nothing sees, predicts nothing."""
    follows = arguments["attention_mask"].roll(1, -1) * arguments["attention_mask"]
    return arguments["input_ids"].masked_fill(follows == 0, -100)


def only_text(side):
    def inputs(config):
        arguments = text(L, side)
        return arguments, {"self": arguments["attention_mask"].bool()}

    return inputs


def source_and_target(config):
    decoder = text(L, "right")
    arguments = text(SOURCE, "right") | {f"decoder_{k}": v for k, v in decoder.items()}
    target, source = decoder["attention_mask"].bool(), arguments["attention_mask"].bool()
    return arguments, {"self": target, "cross": target, "encoder": source}


def sound(config):
    decoder = text(L, "right")
    arguments = {f"decoder_{name}": value for name, value in decoder.items()}
    arguments["input_features"] = torch.randn(B, config.num_mel_bins, 2 * SOURCE)
    target = decoder["attention_mask"].bool()
    source = torch.ones(B, SOURCE, dtype=torch.bool)
    return arguments, {"self": target, "cross": target, "encoder": source}


def decoder_with_source(config):
    arguments, keep = text(L, "left"), padding(SOURCE, "right")
    source = {
        "encoder_hidden_states": torch.randn(B, SOURCE, config.hidden_size),
        "encoder_attention_mask": keep,
    }
    target = arguments["attention_mask"].bool()
    return arguments | source, {"self": target, "cross": target}


def picture(config):
    return {"pixel_values": torch.randn(B, 3, 21, 21)}, {}


def picture_and_text(config):
    arguments = text(L, "right")
    return arguments | picture(config)[0], {"text_model": arguments["attention_mask"].bool()}


def wave(config):
    return {"input_values": torch.randn(B, 501)}, {}


INPUTS = {
    "left": only_text("left"),
    "right": only_text("right"),
    "both": source_and_target,
    "sound": sound,
    "source": decoder_with_source,
    "picture": picture,
    "picture and text": picture_and_text,
    "wave": wave,
}
