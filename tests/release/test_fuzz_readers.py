"""Every reader of a user's files reads damaged ones, or refuses them by an error of the project."""

import random

import pytest

import fuzz_readers
from fuzz_seeds import READERS, Reader

# An atlas of a model is made for these, and for the heavy ones transformers builds one an input.
FEWER = {"atlas": 6, "run": 12}
HEAVY = {"gguf", "pretrained"}
NAMES = [
    pytest.param(name, marks=[pytest.mark.thorough] * (name in HEAVY), id=name) for name in READERS
]


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    monkeypatch.setattr(fuzz_readers, "FOUND", tmp_path / "fuzz")
    return tmp_path / "fuzz"


@pytest.mark.parametrize("name", NAMES)
def test_damaged_files_are_read_or_refused(name, monkeypatch):
    monkeypatch.setenv("OLLAMA_MODELS", "")  # and set it back: a reader sets it
    with fuzz_readers.prepared(name) as give:
        findings = [found for number in range(FEWER.get(name, 30)) if (found := give(number))]
    assert findings == []


def test_the_same_number_is_the_same_damage_and_others_are_others():
    data = b'{"a": 12, "b": [1, 2]}' + bytes(99)
    made = [fuzz_readers.damaged(data, random.Random(number)) for number in range(200)]
    assert made == [fuzz_readers.damaged(data, random.Random(number)) for number in range(200)]
    assert len({*made}) > 150
    assert fuzz_readers.damaged(b"", random.Random(0)) is not None


def fails(error):
    def read(folder):
        if (folder / "a").read_bytes() != b"whole":
            raise error

    return Reader(lambda folder: (folder / "a").write_bytes(b"whole"), read)


class Panic(BaseException):
    """As a library in Rust panics."""


@pytest.mark.parametrize(
    "error", [KeyError("x"), MemoryError(), RecursionError(), Panic()], ids=repr
)
def test_an_error_of_another_kind_is_found_and_the_file_kept(error, kept, monkeypatch):
    monkeypatch.setitem(READERS, "own", fails(error))
    with fuzz_readers.prepared("own") as give:
        findings = [found for number in range(9) if (found := give(number))]
        assert findings[0] == give(findings[0].number)
    assert len(findings) > 5
    assert findings[0].what.startswith(type(error).__name__)
    (file,) = kept.glob(f"own-{findings[0].number}-a")
    assert file.read_bytes() != b"whole"


def test_one_that_never_ends_is_found(monkeypatch):
    def read(folder):
        while (folder / "a").read_bytes() != b"whole":
            pass

    make = fails(None).make
    monkeypatch.setitem(READERS, "own", Reader(make, read))
    monkeypatch.setattr(fuzz_readers, "LIMIT", 0.02)
    with fuzz_readers.prepared("own") as give:
        assert any(found and found.what.startswith("TooLong") for found in map(give, range(5)))
