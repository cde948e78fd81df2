"""Names of tokens: what they spell, by the decoders of the tokenizers that people use."""

import pytest
import torch
import transformers
from support.recordings import B, L, Model
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

import regard
from regard.gpt import BPETokenizer
from regard.lens import split_passages, token_offsets
from regard.lens.spans.links import place_links
from regard.record import token_names

TEXT = "Price: $5 — 你好 👋 naïve\n\tHe  said."


def byte_level():
    """As GPT-2's, without merges: every byte is a token of its own."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return inner


def trained_byte_level(text):
    inner = byte_level()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        [text],
        trainers.BpeTrainer(vocab_size=269, initial_alphabet=alphabet, show_progress=False),
    )
    return inner


def sentence_piece():
    """As Llama's: ▁ is a space, and what is not in the vocabulary is written in bytes."""
    pieces = ["<unk>", "▁The", "▁", "▁cat", "s", "é", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    inner = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    inner.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    inner.add_special_tokens(["<s>"])
    return inner


def metaspace():
    vocabulary = {piece: n for n, piece in enumerate(["▁The", "▁", "▁cat", "s", "<unk>"])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.decoder = decoders.Metaspace()
    return inner


def word_piece():
    pieces = ["[UNK]", "the", "cat", "##s", "sat", ".", "##.", "'"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    inner = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    inner.add_special_tokens(["[CLS]", "[SEP]"])
    return inner


def end_of_word():
    """As CLIP's: an end of a word is marked, and a space is none of its tokens."""
    pieces = ["ca", "t</w>", "s</w>", "sat</w>"]
    inner = Tokenizer(
        models.BPE({piece: n for n, piece in enumerate(pieces)}, [], end_of_word_suffix="</w>")
    )
    inner.decoder = decoders.BPEDecoder(suffix="</w>")
    return inner


def wrapped(inner):
    """As transformers has it."""
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner)


def ids_of(inner, *pieces):
    return [inner.token_to_id(piece) for piece in pieces]


@pytest.mark.parametrize("kind", [lambda inner: inner, wrapped], ids=["tokenizers", "transformers"])
def test_bytes_are_spelled_as_by_the_own_tokenizer(kind):
    inner = trained_byte_level("Price: naïve " * 7)
    ids = inner.encode(TEXT).ids
    names = token_names(kind(inner), ids)
    assert names == BPETokenizer(inner).tokens(ids)
    assert names[names.index("<0xE4>") :][:3] == ["<0xE4>", "<0xBD>", "<0xA0>"]
    assert " " in names and "\n" in names and "\t" in names  # noqa: PT018
    # Every token starts and stops where it does by the library's own account.
    encoded = wrapped(inner)(TEXT, return_offsets_mapping=True)
    assert token_offsets(names) == [tuple(span) for span in encoded["offset_mapping"]]


@pytest.mark.parametrize("kind", [lambda inner: inner, wrapped], ids=["tokenizers", "transformers"])
def test_spaces_of_sentence_piece_are_spaces_and_bytes_are_bytes(kind):
    inner = sentence_piece()
    pieces = ["<s>", "▁The", "▁cat", "s", "▁", "é", "<0x0A>", "<0xE4>", "<0xBD>", "▁The"]
    names = token_names(kind(inner), ids_of(inner, *pieces))
    assert names == ["<s>", " The", " cat", "s", " ", "é", "\n", "<0xE4>", "<0xBD>", " The"]


def test_spaces_of_metaspace_are_spaces():
    ids = ids_of(metaspace(), "▁The", "▁cat", "s", "▁")
    assert token_names(metaspace(), ids) == [" The", " cat", "s", " "]


@pytest.mark.parametrize("kind", [lambda inner: inner, wrapped], ids=["tokenizers", "transformers"])
def test_words_of_word_piece_are_apart_and_their_parts_are_not(kind):
    inner = word_piece()
    ids = [*ids_of(inner, "[CLS]"), *inner.encode("the cats sat.").ids, *ids_of(inner, "[SEP]")]
    assert token_names(kind(inner), ids) == ["[CLS]", " the", " cat", "s", " sat", ".", "[SEP]"]


def test_ends_of_words_are_spaces():
    ids = ids_of(end_of_word(), "ca", "t</w>", "sat</w>", "ca", "s</w>")
    assert token_names(end_of_word(), ids) == ["ca", "t ", "sat ", "ca", "s "]
    clip = end_of_word()
    clip.decoder = decoders.ByteLevel()
    assert token_names(clip, ids) == ["ca", "t ", "sat ", "ca", "s "]


def test_bytes_in_latin_signs_are_those_of_byt5():
    tokenizer = transformers.ByT5Tokenizer()
    ids = tokenizer("a ä\n", add_special_tokens=False)["input_ids"]
    assert token_names(tokenizer, ids) == ["a", " ", "<0xC3>", "<0xA4>", "\n"]


def test_added_tokens_stand_as_they_are():
    inner = byte_level()
    inner.add_tokens([AddedToken("Ġé")])
    inner.add_special_tokens(["<｜end▁of▁text｜>"])
    ids = ids_of(inner, "Ġé", "<｜end▁of▁text｜>")
    assert token_names(inner, ids) == ["Ġé", "<｜end▁of▁text｜>"]


def test_a_tokenizer_that_knows_no_spelling_names_its_tokens():
    inner = Tokenizer(models.WordLevel({"w0": 0, "w1": 1}, unk_token="w0"))
    assert token_names(inner, [0, 1, 5]) == ["w0", "w1", "<5>"]
    assert token_names(wrapped(inner), [0, 1, 0]) == ["w0", "w1", "w0"]


def test_a_recording_has_the_names():
    inner = trained_byte_level(TEXT)
    ids = torch.tensor(inner.encode(TEXT).ids[:L]).expand(B, L)
    model = Model()
    with regard.record(model, tokens=wrapped(inner)) as recording:
        model(ids)
    assert recording.tokens == (tuple(token_names(inner, ids[0].tolist())),) * B


@pytest.mark.parametrize(
    ("tokens", "written"),
    [
        (["Price", "Ġ$", "5", "ĠâĢĶ", "Ġ", "ä½"], "Ġ\\$"),
        (["<s>", "▁The", "▁cat"], "▁The"),
        (["[CLS]", "cat", "##s"], "##s"),
        (["ca", "t</w>", "sat</w>"], "t</w>"),
    ],
)
def test_what_a_vocabulary_writes_is_not_taken_for_text(tokens, written):
    refusal = rf"tokens: '{written}' is how a vocabulary writes .*record\.token_names"
    with pytest.raises(ValueError, match=refusal):
        token_offsets(tokens)
    with pytest.raises(ValueError, match=refusal):
        place_links(tokens, [])


@pytest.mark.parametrize("tokens", [(("a", "b"),), None, 5, "ab", ["a", None]])
def test_what_is_no_list_of_strings_spells_no_text(tokens):
    with pytest.raises(
        TypeError, match=r"^tokens must be a list of strings.*recording\.tokens\[0\]"
    ):
        token_offsets(tokens)


@pytest.mark.parametrize("make", [byte_level, lambda: BPETokenizer(byte_level())])
@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        (torch.tensor([[1, 2]]), ValueError, r"^ids must be a vector.*\(1, 2\).*such as ids\[0\]$"),
        (torch.tensor([1.0]), TypeError, r"^ids must hold integers.*float32; try ids\.long\(\)$"),
        ([[1, 2]], TypeError, r"^ids must be integers.*\[\[1, 2\]\]; give those of one sequence$"),
        ([1.5], TypeError, r"^ids must be integers.*\[1\.5\]"),
        (5, TypeError, r"^ids must be integers.*but is 5;"),
        ([3, -100], ValueError, r"^ids holds -100; expected 0 to .*labels$"),
        ([2**40], ValueError, r"^ids holds 1099511627776; expected 0 to"),
    ],
)
def test_ids_that_name_nothing_are_refused(make, ids, error, message):
    with pytest.raises(error, match=message):
        token_names(make(), ids)


def test_text_that_holds_such_signs_is_text():
    tokens = ["# ", "Ġorġ", "\n\n", "##Two", " a", "▁b"]
    text = "".join(tokens)
    assert [text[slice(*span)] for span in token_offsets(tokens)] == tokens
    assert len(split_passages(text, token_offsets(tokens))) == 2
