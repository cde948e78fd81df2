"""The texts of a corpus: files, rows, duplicates, windows, and what is refused."""

import json
import os

import pytest

import regard
from regard.errors import Error
from regard.lens import Corpus
from regard.lens.head_atlas.corpus import documents_of, plan
from regard.lens.head_atlas.token_classes import token_classes


@pytest.fixture(scope="module")
def model():
    return regard.models.open()


def test_files_folders_rows_and_texts_come_in_one_order(tmp_path):
    (tmp_path / "b.txt").write_text("second")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "z.md").write_text("first")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "hidden.txt").write_text("hidden")
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "third"}\n\n{"text": "fourth", "id": 3}\n')
    corpus = Corpus([tmp_path, "a text"])
    for _ in range(2):  # it can be read again
        assert [text.content for text in corpus] == ["first", "second", "third", "fourth", "a text"]
    assert [text.source.rsplit("/", 1)[-1] for text in corpus][2:] == [
        "rows.jsonl:1",
        "rows.jsonl:3",
        "text 3",
    ]
    assert next(iter(Corpus("one text"))).content == "one text"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("image.png", b"\x89PNG\r\n\x1a\n\0\0", "is no text in UTF-8"),
        ("zeros.txt", b"a\0b", "is no text in UTF-8"),
        ("latin.txt", "é".encode("latin-1"), "is no text in UTF-8"),
        ("rows.jsonl", b'{"text": "a"}\n{"other": 1}\n', "line 2 has no field 'text'"),
        ("rows.jsonl", b"{", "line 1 is no JSON"),
        ("rows.jsonl", b'["a"]', "line 1 has no field 'text'"),
    ],
)
def test_files_that_are_no_text_are_refused_by_name(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(Error, match=message) as caught:
        list(Corpus(path))
    assert str(path) in str(caught.value)


def test_a_file_too_large_for_one_document_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("regard.lens.head_atlas.corpus._LONGEST", 7)
    (tmp_path / "long.txt").write_text("12345678")
    with pytest.raises(Error, match="has 8 bytes, and a document may have 7"):
        list(Corpus(tmp_path))


def test_missing_paths_and_empty_folders_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        Corpus(tmp_path / "none")
    with pytest.raises(Error, match="holds no file"):
        Corpus(tmp_path)


def test_documents_are_read_once_and_cut_into_windows(model):
    texts = ["The cat sat on the mat.", "", "The cat sat on the mat.", "The", "Tom had a red kite."]
    left_out = []
    first, second = documents_of(Corpus(texts), model, tokens=None, length=4, found=left_out)
    assert (first.number, second.number) == (0, 4)
    assert left_out == ["short", "duplicate", "short"]
    ids = model.read(texts[0]).ids
    assert first.windows == (ids[:4], ids[4:])
    assert first.tokens == len(ids)
    counted = plan(Corpus(texts), model, tokens=None, length=4)
    assert (counted.documents, counted.duplicates, counted.too_short) == (2, 1, 2)
    assert counted.tokens == first.tokens + second.tokens
    assert (counted.strided, counted.last) == (2, 5)
    # The document with which the tokens are reached is the last.
    assert plan(Corpus(texts), model, tokens=len(ids), length=9).documents == 1
    assert plan(Corpus(texts), model, tokens=len(ids) + 1, length=9).documents == 2


def test_the_fingerprint_is_of_all_tokens_in_order(model):
    def of(*texts):
        return plan(Corpus(texts), model, tokens=None, length=99).fingerprint

    assert of("The cat sat.", "Tom had a kite.") == of("The cat sat.", "", "Tom had a kite.")
    assert len({of("The cat sat.", "Tom had a kite."), of("Tom had a kite.", "The cat sat.")}) == 2


@pytest.mark.parametrize("texts", [[], ["", " \n"], ["The"]])
def test_a_corpus_without_text_is_refused(model, texts):
    with pytest.raises(Error, match="no text of two tokens"):
        plan(Corpus(texts), model, tokens=None, length=99)


def test_parquet_needs_a_library_that_is_named(tmp_path):
    path = tmp_path / "rows.parquet"
    path.write_bytes(json.dumps({}).encode())
    try:
        import datasets  # noqa: F401
    except ModuleNotFoundError:
        with pytest.raises(ModuleNotFoundError, match=r"needs the library datasets: .*\[corpus\]"):
            list(Corpus(path))
    else:
        with pytest.raises(Error, match="can't be read as Parquet"):
            list(Corpus(path))


def test_classes_of_tokens_at_a_beginning_and_of_what_is_no_word():
    tokens = [
        "<s>",
        "The",
        " cat",
        ".",
        ' "',
        "Tom",
        " met",
        " Ann",
        "<0xE4>",
        "\ufffd",
        "🙂",
        "三",
    ]
    assert token_classes(tokens) == [
        *("separator", "word", "word", "separator", "separator", "word", "word", "name"),
        *("other", "other", "other", "word"),
    ]


def test_a_name_of_any_bytes_and_a_byte_order_mark(tmp_path):
    path = os.fsencode(tmp_path) + b"/caf\xe9.txt"
    try:
        with open(path, "wb") as file:  # noqa: PTH123 - a path of bytes
            file.write(b"\xef\xbb\xbfThe cat.")
    except OSError:
        pytest.skip("this file system has no such names")
    (text,) = Corpus(tmp_path)
    assert (text.content, text.source) == ("The cat.", f"{tmp_path}/caf\ufffd.txt")
    text.source.encode()
