"""Generation of texts: whole characters, stop strings, several prompts."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from regard.gpt import (
    GPT,
    BPETokenizer,
    CharTokenizer,
    GPTConfig,
    Sampling,
    generate_texts,
    stream_text,
    stream_texts,
)
from regard.gpt.sampling import Sampler
from regard.gpt.tokenizer import Detokenizer


@pytest.fixture
def says(monkeypatch):
    """Makes the model continue prompts with given texts, one token a step."""

    def make(tokenizer, *texts):
        columns = zip(*(tokenizer.encode(text) for text in texts), strict=True)
        wanted = iter([torch.tensor(column) for column in columns])
        monkeypatch.setattr(Sampler, "draw", lambda self, logits: next(wanted))
        config = GPTConfig(vocab_size=tokenizer.vocab_size, context=9, layers=1, heads=1, dim=4)
        return GPT(config).eval()

    return make


def test_text_comes_in_whole_characters(monkeypatch):
    tokenizer = BPETokenizer.train(["x"], vocab_size=256)  # one token a byte
    model = GPT(GPTConfig(vocab_size=256, context=9, layers=1, heads=1, dim=4))
    text = "é日🎉 \ufffd!"
    for following, expected in (
        (tokenizer.encode(text), ["é", "日", "🎉", " ", "\ufffd!"]),
        (tokenizer.encode("a🎉")[:3], ["a", "\ufffd"]),
        (tokenizer.encode("🎉")[:2] + tokenizer.encode("b"), ["\ufffdb"]),
    ):
        wanted = iter(following)
        monkeypatch.setattr(
            Sampler,
            "draw",
            lambda self, logits, wanted=wanted: torch.tensor([next(wanted)]),
        )
        pieces = stream_text(
            model, tokenizer, "x", tokens=len(following), sampling=Sampling(temperature=0.0)
        )
        assert list(pieces) == expected


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ([], "one. two. three."),
        (["."], "one"),
        ([". t", "o. "], "one"),
        (["three"], "one. two. "),
        (["threes", "wx", ".."], "one. two. three."),
        (["two", "one"], ""),
        (["hree.", "ree"], "one. two. th"),
    ],
)
def test_a_text_ends_before_the_first_stop_string(says, stop, expected):
    text = "one. two. three."
    tokenizer = CharTokenizer(text)
    model = says(tokenizer, text)
    pieces = list(stream_text(model, tokenizer, "one", tokens=len(text), stop=stop))
    assert "".join(pieces) == expected
    assert all(pieces)


def test_a_text_ends_with_the_token_that_ends_a_document(monkeypatch):
    tokenizer = BPETokenizer.train(["x"], vocab_size=257, end=True)
    model = GPT(GPTConfig(vocab_size=257, context=9, layers=1, heads=1, dim=4))
    ids = [*tokenizer.encode("ab"), tokenizer.end, *tokenizer.encode("ba")]
    wanted = iter(ids)
    monkeypatch.setattr(Sampler, "draw", lambda self, logits: torch.tensor([next(wanted)]))
    pieces = stream_text(model, tokenizer, "a", tokens=len(ids), stop=["xx", "bx"])
    assert "".join(pieces) == "ab"
    assert len(list(wanted)) == 2  # what would follow is not drawn


def test_text_that_may_become_a_stop_string_is_held_back(says):
    tokenizer = CharTokenizer("abc")
    model = says(tokenizer, "cabacabc")
    pieces = stream_text(model, tokenizer, "a", tokens=8, stop=["abc"])
    assert list(pieces) == ["c", "ab", "ac"]


def by_characters(text, stop):
    """Where a text ends that is written one character after another."""
    for end in range(1, len(text) + 1):
        complete = [len(one) for one in stop if text[:end].endswith(one)]
        if complete:
            return text[: end - max(complete)]
    return text


class Pieces:
    """A tokenizer whose tokens are these bytes; none of them ends a document."""

    end = None

    def __init__(self, data):
        self.data = data

    def decode(self, ids):
        return b"".join(self.data[i] for i in ids).decode(errors="replace")


@given(
    text=st.text("abé", max_size=25),
    cuts=st.sets(st.integers(1, 40)),
    stop=st.lists(st.text("abé", min_size=1, max_size=4), max_size=3),
)
@example(text="bbbbaab", cuts=set(), stop=["baab", "aa"])
@example(text="bbbbaab", cuts=set(), stop=["aab", "ab"])
def test_a_text_ends_where_it_would_if_it_came_by_characters(text, cuts, stop):
    data = text.encode()
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[start:end] for start, end in pairwise(places)]
    spelling, expected, text = Detokenizer(Pieces(pieces), stop), by_characters(text, stop), ""
    for token, end in enumerate(places[1:]):
        text += spelling.add(token)
        assert expected.startswith(text)
        # No more is held back than what may become a stop string, or a character.
        shown = data[:end].decode(errors="ignore")
        assert spelling.stopped or len(text) > len(shown) - max(map(len, [*stop, "a"]))
    assert text + spelling.end() == expected


def test_a_stream_ends_before_the_stop_string_that_is_complete_first(monkeypatch):
    tokenizer = BPETokenizer.train(["bbbbaab"] * 9, vocab_size=262)
    (token,) = tokenizer.encode("bbbbaab")  # completes both at once
    model = GPT(GPTConfig(vocab_size=262, context=9, layers=1, heads=1, dim=4))
    monkeypatch.setattr(Sampler, "draw", lambda self, logits: torch.tensor([token]))
    pieces = stream_text(model, tokenizer, "a", tokens=1, stop=["baab", "aa"])
    assert list(pieces) == ["bbbb"]


def test_texts_end_each_for_itself_and_the_drawing_with_the_last(says):
    tokenizer = CharTokenizer("abc.")
    model = says(tokenizer, "ab.ccccc", "abca.ccc")
    got = list(stream_texts(model, tokenizer, ["a", "bb"], tokens=8, stop=["."]))
    assert got == [(0, "a"), (1, "a"), (0, "b"), (1, "b"), (1, "c"), (1, "a")]
    model = says(tokenizer, "ab.ccccc", "abca.ccc")
    assert generate_texts(model, tokenizer, ["a", "b"], tokens=8, stop=["."]) == ["ab", "abca"]


def test_a_prompt_and_a_list_of_stop_strings_are_needed():
    tokenizer = BPETokenizer.train(["x"], vocab_size=256)
    model = GPT(GPTConfig(vocab_size=256, context=9, layers=1, heads=1, dim=4))
    with pytest.raises(ValueError, match="prompt is empty"):
        stream_text(model, tokenizer, "", tokens=3)
    with pytest.raises(TypeError, match="prompts is a str; expected a list of texts"):
        generate_texts(model, tokenizer, "xx", tokens=3)
    for stop in ("ab", [""]):
        with pytest.raises(ValueError, match=r"stop is .*; expected a list of strings"):
            stream_text(model, tokenizer, "x", tokens=3, stop=stop)
