"""Where text comes from, and how it is split."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from rich.console import Console

from regard.errors import Error
from regard.gpt import (
    GPTConfig,
    TrainConfig,
    prepare,
    python_texts,
    read_texts,
    split_texts,
    train,
)
from regard.gpt.training import corpus


def test_python_carries_its_language_reference():
    texts = python_texts("topics")
    assert sum(map(len, texts)) > 200_000
    assert texts == python_texts("topics")


def test_no_paragraph_stands_in_two_texts():
    seen = set()
    for text in python_texts("topics"):
        long = [" ".join(p.split()) for p in text.split("\n\n") if len(p) > 200]
        assert not seen.intersection(long)
        seen.update(long)


def test_docstrings_and_sources_come_from_the_standard_library(tmp_path, monkeypatch):
    (tmp_path / "one.py").write_text('"""One."""\ndef f():\n    """Two."""\nx = "\\d"\n', "utf-8")
    (tmp_path / "two.py").write_text("y = 2\n", "utf-8")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "test_one.py").write_text('"""No."""\n', "utf-8")
    monkeypatch.setattr(corpus.sysconfig, "get_path", lambda name: str(tmp_path))
    assert python_texts("docstrings") == ["One.\n\n\nTwo.\n"]
    assert python_texts("sources") == [
        '"""One."""\ndef f():\n    """Two."""\nx = "\\d"\n',
        "y = 2\n",
    ]
    assert python_texts()[-1] == "One.\n\n\nTwo.\n"


def test_a_reduced_python_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(Error, match="this Python has no sources"):
        python_texts("sources")
    with pytest.raises(ValueError, match="parts holds 'poems'; expected topics, docstrings"):
        python_texts("poems")


def test_a_file_or_a_folder_is_read_in_order(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "late.txt").write_text("late ü", "utf-8")
    (tmp_path / "a.md").write_text("early", "utf-8")
    (tmp_path / "blank.txt").write_text(" \n", "utf-8")
    (tmp_path / ".hidden").write_bytes(b"\xff")
    assert read_texts(tmp_path) == ["early", "late ü"]
    assert read_texts(str(tmp_path / "a.md")) == ["early"]


def test_text_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(Error, match=r"missing\.txt does not exist"):
        read_texts(tmp_path / "missing.txt")
    with pytest.raises(Error, match="holds no file"):
        read_texts(tmp_path)
    (tmp_path / "empty.txt").write_text("", "utf-8")
    with pytest.raises(Error, match=r"empty\.txt holds no text: 1 file"):
        read_texts(tmp_path / "empty.txt")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 au lait")
    with pytest.raises(Error, match=r"latin\.txt is not UTF-8 text: byte 0xe9 at offset 3"):
        read_texts(tmp_path)


@settings(deadline=None)
@given(
    texts=st.lists(st.text(alphabet="ab\n", min_size=1, max_size=300), min_size=1),
    share=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**32),
)
def test_a_split_loses_nothing(texts, share, seed):
    assume(sum(map(len, texts)) > 2)
    training, validation = split_texts(texts, validation=share, seed=seed)
    assert training
    assert validation
    both = "".join(training) + "".join(validation)
    assert sorted(both) == sorted("".join(texts))
    assert (training, validation) == split_texts(texts, validation=share, seed=seed)


def test_a_split_holds_out_its_share():
    texts = ["".join(f"line {i} of text {t}\n" for i in range(500)) for t in range(7)]
    training, validation = split_texts(texts, validation=0.1, seed=0)
    size = sum(map(len, texts))
    # Whole sections are held out: a fortieth of the text, give or take a line.
    assert 0.1 <= sum(map(len, validation)) / size < 0.13
    assert all(text.endswith("\n") for text in training + validation)
    assert validation != split_texts(texts, validation=0.1, seed=1)[1]
    for text in validation:
        assert not any(text in other for other in training)


def test_a_text_of_two_characters_cannot_be_split():
    with pytest.raises(Error, match="fewer than three characters"):
        split_texts(["xy"], validation=0.5, seed=0)


def functions_of_texts(folder):
    quiet = Console(quiet=True)
    small = {"gpt": GPTConfig(vocab_size=260, context=4, layers=1, heads=1, dim=2)}
    small["config"] = TrainConfig(steps=1, warmup=0)
    return {
        "prepare": lambda texts: prepare(folder / "c", texts, console=quiet),
        "prepare by characters": lambda texts: prepare(
            folder / "c", texts, tokenizer="char", console=quiet
        ),
        "train": lambda texts: train(folder / "m", texts=texts, console=quiet, **small),
        "resume": lambda texts: train(folder / "m", texts=texts, console=quiet, resume=True),
        "split_texts": lambda texts: split_texts(texts, validation=0.1, seed=0),
    }


@pytest.mark.parametrize("name", functions_of_texts(None))
@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("some words\n" * 99, r"texts is a str; expected a list .* \[text\], .* pathlib\.Path"),
        ("book.txt", r"texts is a str; expected a list of texts, .*pathlib\.Path"),
        (b"bytes", "texts is a bytes; expected a list"),
        (iter(["a text"] * 99), r"texts is a list_iterator; expected a list"),
        (5, "texts is a int; expected a list"),
        ({"a text", "another"}, "texts is a set; expected a list"),
        ({"a text": 1}, "texts is a dict; expected a list"),
        (["a text", Path("book.txt")], r"texts\[1\] is a \w+Path; .* give its pathlib\.Path"),
    ],
)  # fmt: skip
def test_other_types_than_a_list_of_texts_are_refused(tmp_path, name, texts, message):
    with pytest.raises(TypeError, match=message):
        functions_of_texts(tmp_path)[name](texts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["prepare", "prepare by characters", "train"])
def test_a_lone_surrogate_is_refused_with_text_and_index(tmp_path, name):
    texts = ["a text of some words\n" * 99, "another \udc80 one\n" * 99]
    message = r"texts\[1\] holds a lone surrogate, U\+DC80, at index 8; .* leave it out, such as by"
    with pytest.raises(ValueError, match=message) as caught:
        functions_of_texts(tmp_path)[name](texts)
    assert type(caught.value) is ValueError  # and no UnicodeEncodeError
    assert list(tmp_path.iterdir()) == []
