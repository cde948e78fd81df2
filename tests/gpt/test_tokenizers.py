"""Both tokenizers: the figures, lossless round trips, displayable pieces, keeping them."""

from __future__ import annotations

import json

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.gpt import BPETokenizer, CharTokenizer, Tokenizer
from regard.record.token_names import displayable

SENTENCE = "But they were all of them deceived."
TEXTS = ["The theory of the thing is that they think.\n" * 3, "naïve café — 日本語 🎉🎉\n" * 3]


@pytest.fixture(scope="module")
def bpe():
    return BPETokenizer.train(TEXTS, vocab_size=290)


def test_the_characters_of_a_sentence():
    tokenizer = CharTokenizer(SENTENCE)
    ids = [2, 15, 14, 0, 14, 8, 6, 18, 0, 17, 6, 13, 6, 0, 3, 10, 10, 0, 12, 7, 0]
    ids += [14, 8, 6, 11, 0, 5, 6, 4, 6, 9, 16, 6, 5, 1]
    assert tokenizer.vocab_size == 19
    assert tokenizer.encode(SENTENCE) == ids
    assert tokenizer.decode(ids) == SENTENCE
    assert tokenizer.tokens(ids) == list(SENTENCE)


def test_an_unknown_character_is_named():
    with pytest.raises(ValueError, match=r"holds 'é' \(U\+00E9\) at index 3, .* 19 characters"):
        CharTokenizer(SENTENCE).encode("allé")
    with pytest.raises(ValueError, match="text is empty"):
        CharTokenizer("")


@settings(deadline=None)
@given(text=st.text())
def test_bpe_gives_back_any_text(text, bpe):
    ids = bpe.encode(text)
    assert bpe.decode(ids) == text
    assert all(0 <= i < bpe.vocab_size for i in ids)


@settings(deadline=None)
@given(text=st.text(min_size=1))
def test_characters_give_back_their_own_text(text):
    tokenizer = CharTokenizer(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert CharTokenizer.from_json(tokenizer.to_json()).characters == tokenizer.characters


def test_bpe_merges_frequent_pairs(bpe):
    assert bpe.vocab_size == 290
    assert "The" not in bpe.tokens(range(256))
    assert len(bpe.encode(TEXTS[0])) < len(TEXTS[0]) / 2
    assert BPETokenizer.train(TEXTS, vocab_size=290).to_json() == bpe.to_json()


def test_every_byte_is_a_token_and_shows_itself(bpe):
    pieces = bpe.tokens(range(256))
    assert len(set(pieces)) == 256
    assert {chr(byte) for byte in range(128)} <= set(pieces)
    assert {f"<0x{byte:02X}>" for byte in range(128, 256)} <= set(pieces)


def test_pieces_are_readable_text(bpe):
    assert "".join(bpe.tokens(bpe.encode("that thing"))) == "that thing"
    untrained = BPETokenizer.train(["x"], vocab_size=256)
    assert untrained.tokens(untrained.encode("é")) == ["<0xC3>", "<0xA9>"]
    assert untrained.decode(untrained.encode("aé")[:2]) == "a\ufffd"


def test_a_token_of_a_character_and_a_half_shows_both():
    # No word boundary: the pair (last byte of one character, first of the next) is joined as well.
    tokenizer = BPETokenizer.train(["日本" * 50], vocab_size=258)
    pieces = tokenizer.tokens(tokenizer.encode("日本日本"))
    assert all("\ufffd" not in piece for piece in pieces)
    assert any(piece.count("<0x") > 1 for piece in pieces)
    assert displayable("日".encode() + b"\xe6") == "日<0xE6>"


def test_vocabularies_have_a_least_size_and_may_stay_smaller():
    with pytest.raises(ValueError, match="vocab_size is 16777217; expected at most 16777216"):
        BPETokenizer.train(["text"], vocab_size=2**24 + 1)
    with pytest.raises(ValueError, match="vocab_size is 255; expected at least 256"):
        BPETokenizer.train(["x"], vocab_size=255)
    assert BPETokenizer.train(["ab"], vocab_size=1000).vocab_size == 257


def test_a_lone_surrogate_is_refused(bpe):
    with pytest.raises(ValueError, match=r"lone surrogate, U\+D800, at index 1"):
        bpe.encode("a\ud800")
    with pytest.raises(ValueError, match=r"texts\[1\] holds a lone surrogate"):
        BPETokenizer.train(["b", "a\ud800"], vocab_size=260)


def test_one_text_in_place_of_a_list_is_refused():
    with pytest.raises(TypeError, match=r"texts is a str; expected a list of texts, such as"):
        BPETokenizer.train("the cat sat on the mat", vocab_size=260)


@pytest.mark.parametrize("kind", ["bpe", "char"])
def test_ids_outside_the_vocabulary_are_named(kind, bpe):
    tokenizer = bpe if kind == "bpe" else CharTokenizer("ab")
    for wrong in (-1, tokenizer.vocab_size):
        with pytest.raises(ValueError, match=f"ids holds {wrong}; expected ids from 0 to"):
            tokenizer.decode([0, wrong])
        with pytest.raises(ValueError, match=f"ids holds {wrong}"):
            tokenizer.tokens([wrong])
    with pytest.raises(TypeError):
        tokenizer.decode([0.5])


@pytest.mark.parametrize("kind", ["bpe", "char"])
def test_a_tokenizer_is_saved_and_loaded(kind, bpe, tmp_path):
    tokenizer = bpe if kind == "bpe" else CharTokenizer("日本 🎉")
    assert isinstance(tokenizer, Tokenizer)
    tokenizer.save(tmp_path / "new")
    again = type(tokenizer).load(tmp_path / "new")
    text = "日本 🎉"
    assert again.encode(text) == tokenizer.encode(text)
    assert again.vocab_size == tokenizer.vocab_size
    json.loads((tmp_path / "new" / "tokenizer.json").read_text("utf-8"))


def test_no_text_is_cut_or_filled_up_as_the_file_of_a_finetuned_model_says(bpe):
    inner = tokenizers.Tokenizer.from_str(bpe.to_json())
    inner.enable_truncation(3)
    inner.enable_padding(length=64)
    assert len(inner.encode(TEXTS[0]).ids) == 64
    loaded = BPETokenizer.from_json(inner.to_str())
    assert loaded.encode(TEXTS[0]) == bpe.encode(TEXTS[0])


def test_signs_of_added_tokens_stand_for_themselves(bpe):
    """GPT-2's alphabet has a letter such as é stand for a byte, in tokens that were learned."""
    inner = tokenizers.Tokenizer.from_str(bpe.to_json())
    inner.add_tokens(["<fin é>", "Ġß"])
    tokenizer, text = BPETokenizer(inner), "a<fin é>b Ġß é"
    ids = tokenizer.encode(text)
    assert max(ids) >= bpe.vocab_size
    assert tokenizer.decode(ids) == text
    assert "<fin é>" in tokenizer.tokens(ids)


def test_a_tokenizer_of_another_kind_is_refused(bpe, tmp_path):
    bpe.save(tmp_path)
    with pytest.raises(ValueError, match='"type": "characters"'):
        CharTokenizer.load(tmp_path)
    CharTokenizer("ab").save(tmp_path)
    with pytest.raises(ValueError, match="not a tokenizer of the tokenizers library"):
        BPETokenizer.load(tmp_path)
    panics = json.loads(bpe.to_json())  # over a merge that is longer than the longest token
    longest = max(panics["model"]["vocab"], key=len)
    panics["model"]["merges"].append([longest, longest])
    with pytest.raises(ValueError, match="not a tokenizer of the tokenizers library"):
        BPETokenizer.from_json(json.dumps(panics))
    words = json.loads(bpe.to_json()) | {"pre_tokenizer": {"type": "Whitespace"}}
    with pytest.raises(ValueError, match="expected byte-level BPE"):
        BPETokenizer.from_json(json.dumps(words))


def test_ids_have_no_gap():
    content = json.loads(BPETokenizer.train(["a cat"], vocab_size=257).to_json())
    vocabulary = content["model"]["vocab"]
    vocabulary[max(vocabulary, key=vocabulary.get)] = 999
    content["model"]["merges"] = []
    with pytest.raises(ValueError, match="has 257 tokens and ids up to 999; expected ids without"):
        BPETokenizer(tokenizers.Tokenizer.from_str(json.dumps(content)))
