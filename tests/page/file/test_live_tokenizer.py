"""Tokenizers in the page have the ids, texts and names of Python's."""

import json
import random
import sys
import unicodedata

import pytest
from support.sentence_piece import sentence_piece
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from regard.gpt import BPETokenizer, CharTokenizer
from regard.gpt.bpe import END
from regard.models.text import PretrainedTokenizer
from regard.page.file.live import objection_to_tokenizer, tokenizer_file

STRINGS = 10_000
# What texts are made of, and what splits them in its own way: spaces of all kinds, apostrophes,
# marks, digits of other scripts, half of the token that ends a text, the sign that begins files.
SPACES = (
    " \t\n\r\x0b\x0c\x1c\x1f\x85\xa0\u1680\u2003\u2028\u2029\u202f\u205f\u3000\u200b\ufeff\u180e"
)
WORDS = [
    "the",
    " hedgehogs",
    "Leila",
    " listened",
    "well",
    " cat",
    "'s",
    "'LL",
    "'ve",
    " 12",
    "½²",
    "٣٤",
    "naïve",
    "e\u0301",
    "日本",
    "👍🏽",
    END,
    "<|end",
]
SEEDED = 7


@pytest.fixture(scope="module")
def strings():
    """Strings of words, spaces and any characters that Unicode names."""
    draw = random.Random(SEEDED)
    assigned = [
        chr(point)
        for point in range(sys.maxunicode + 1)
        if unicodedata.category(chr(point)) not in ("Cn", "Cs", "Co")
    ]

    def piece():
        kind = draw.random()
        if kind < 0.4:
            return draw.choice(WORDS)
        return draw.choice(SPACES if kind < 0.5 else assigned[:400] if kind < 0.8 else assigned)

    return ["".join(piece() for _ in range(draw.randrange(14))) for _ in range(STRINGS)]


ENCODE = "const t = tokenizerOf(given.file); return given.texts.map((text) => t.encode(text));"
DECODE = """const t = tokenizerOf(given.file);
return given.ids.map((one) => [t.decode(one), t.tokens(one)]);"""
TOKENIZERS = {"live/tokenizer.js": "tokenizerOf"}


def test_ids_of_any_text_are_pythons(node, shipped, strings):
    _, tokenizer = shipped
    file = tokenizer_file(tokenizer)
    ids = node(TOKENIZERS, ENCODE, {"file": file, "texts": strings})
    assert ids == [tokenizer.encode(text) for text in strings]
    assert len({i for text in ids for i in text}) > 256  # more than bytes


def test_decoded_text_and_pieces_are_pythons(node, shipped):
    _, tokenizer = shipped
    draw = random.Random(SEEDED)
    ids = [[draw.randrange(tokenizer.vocab_size) for _ in range(7)] for _ in range(301)]
    answer = node(TOKENIZERS, DECODE, {"file": tokenizer_file(tokenizer), "ids": ids})
    assert answer == [[tokenizer.decode(one), tokenizer.tokens(one)] for one in ids]


def test_characters_as_tokens(node):
    tokenizer = CharTokenizer("héllo 👍")
    data = {
        "file": {"type": "characters", "characters": tokenizer.characters},
        "texts": ["👍 hol", ""],
    }
    assert node(TOKENIZERS, ENCODE, data) == [tokenizer.encode(text) for text in data["texts"]]


def test_tokenizers_that_a_page_does_not_have_are_refused_by_name():
    file = tokenizer_file(BPETokenizer.train(["a b"], vocab_size=256))
    assert objection_to_tokenizer(file) is None
    for part, given, why in (
        ("decoder", {"type": "WordPiece"}, "its decoder is WordPiece"),
        ("decoder", None, "its decoder is None"),
        ("model", {"type": "Unigram"}, "its model is Unigram"),
        (
            "pre_tokenizer",
            {"type": "Sequence", "pretokenizers": [{"behavior": "Contiguous"}]},
            "its pre_tokenizer splits by Contiguous",
        ),
    ):
        assert objection_to_tokenizer(file | {part: given}) == why


STEPS = {
    "digits": {"type": "Digits", "individual_digits": True},
    "bytes": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
}


def test_ids_where_other_steps_come_first_are_pythons(node, shipped, strings):
    file = tokenizer_file(shipped[1])
    steps = {"type": "Sequence", "pretokenizers": list(STEPS.values())}
    file |= {"pre_tokenizer": steps, "normalizer": {"type": "NFC"}}
    whole = Tokenizer.from_str(json.dumps(file))
    texts = strings[:1009]
    ids = node(TOKENIZERS, ENCODE, {"file": file, "texts": texts})
    assert ids == [whole.encode(text).ids for text in texts]
    assert ids != [shipped[1].encode(text) for text in texts]


SIGN = "▁"
WAYS = {
    "Llama 2": {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": SIGN},
                {"type": "Replace", "pattern": {"String": " "}, "content": SIGN},
            ],
        }
    },
    "whole": {
        "pre_tokenizer": {
            "type": "Metaspace",
            "replacement": SIGN,
            "prepend_scheme": "first",
            "split": False,
        }
    },
    "words": {
        "pre_tokenizer": {
            "type": "Metaspace",
            "replacement": SIGN,
            "prepend_scheme": "always",
            "split": True,
        }
    },
}
"""How spaces become signs of a vocabulary."""


@pytest.mark.parametrize("way", WAYS)
def test_a_vocabulary_of_characters_beside_bytes_is_read_as_pythons(node, strings, way):
    inner = Tokenizer.from_str(json.dumps(json.loads(sentence_piece().to_str()) | WAYS[way]))
    tokenizer = PretrainedTokenizer(PreTrainedTokenizerFast(tokenizer_object=inner), "pieces")
    file = tokenizer_file(tokenizer)
    assert objection_to_tokenizer(file) is None
    texts = [text.replace(END, "</s>") for text in strings[:2003]]
    ids = node(TOKENIZERS, ENCODE, {"file": file, "texts": texts})
    assert ids == [inner.encode(text).ids for text in texts]
    own = [one[1:] for one in ids]  # without the token that begins every text
    answer = node(TOKENIZERS, DECODE, {"file": file, "ids": own})
    assert answer == [[tokenizer.decode(one), tokenizer.tokens(one)] for one in own]
