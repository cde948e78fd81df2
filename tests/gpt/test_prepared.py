"""A corpus on disk: nothing is lost on the way, little is in memory, and damage is reported."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal

import numpy as np
import pytest
from rich.console import Console
from support.processes import run_script

from regard.errors import Error
from regard.gpt import (
    BPETokenizer,
    CharTokenizer,
    CheckpointError,
    GPTConfig,
    TrainConfig,
    open_corpus,
    prepare,
    train,
)
from regard.gpt.training import _sources as sources
from regard.gpt.training import prepare as module
from regard.gpt.training.checkpoints import FolderLock
from regard.gpt.training.corpus import read_texts

QUIET = Console(quiet=True)


def book(name, lines=400):
    return "".join(f"line {i} of {name}, naïve and – café\n" for i in range(lines))


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "texts"
    place.mkdir()
    for name in ("a", "b", "c"):
        (place / f"{name}.txt").write_text(book(name), "utf-8")
    (place / "empty.txt").write_text("")
    return place


def test_every_character_comes_back_and_documents_end(folder, tmp_path):
    corpus = prepare(tmp_path / "c", folder, vocab_size=400, validation=0.1, console=QUIET)
    end = corpus.tokenizer.end
    assert end == 399 == corpus.tokenizer.vocab_size - 1
    texts = {}
    for name, part in (("training", corpus.training), ("validation", corpus.validation)):
        assert part.dtype == np.uint16
        pieces = corpus.tokenizer.decode(part.tolist()).split("<|endoftext|>")
        assert pieces.pop() == ""  # each document ends with it, the last one too
        entry = corpus.manifest["parts"][name]
        assert entry["documents"] == len(pieces) == int((part == end).sum())
        assert entry["bytes"] == sum(len(piece.encode()) for piece in pieces)
        assert entry["tokens"] == len(part)
        texts[name] = pieces
    whole = "".join(book(name) for name in "abc")
    assert sorted("".join(texts["training"] + texts["validation"])) == sorted(whole)
    for piece in texts["training"] + texts["validation"]:
        assert any(piece in book(name) for name in "abc")  # no piece reaches over a file's end
    share = sum(map(len, texts["validation"])) / len(whole)
    assert 0.07 < share < 0.13
    assert corpus.manifest["source"]["texts"] == 3
    assert corpus.manifest["source"]["bytes"] == len(whole.encode())


def test_how_it_is_read_changes_nothing(folder, tmp_path, monkeypatch):
    whole = prepare(tmp_path / "a", folder, vocab_size=300, console=QUIET)
    monkeypatch.setattr(sources, "_BLOCK", 7)  # splits characters of two and three bytes
    monkeypatch.setattr(module, "_BATCH", 50)
    pieces = prepare(tmp_path / "b", folder, vocab_size=300, console=QUIET)
    assert pieces.fingerprint == whole.fingerprint
    assert pieces.manifest == whole.manifest
    again = prepare(tmp_path / "d", folder, vocab_size=300, seed=1, console=QUIET)
    assert again.fingerprint != whole.fingerprint


def test_little_text_is_in_memory_at_a_time(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_BLOCK", 1000)
    monkeypatch.setattr(module, "_BATCH", 2000)
    longest = 0
    original = CharTokenizer.encode_all

    def spy(self, texts):
        nonlocal longest
        longest = max(longest, sum(map(len, texts)))
        return original(self, texts)

    monkeypatch.setattr(CharTokenizer, "encode_all", spy)
    corpus = prepare(tmp_path / "c", folder, tokenizer="char", console=QUIET)
    assert len(corpus.training) > 30_000
    assert longest < 2000 + 1000  # a section more than what was enough


def test_a_vocabulary_is_learned_from_a_part_spread_over_all(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_SAMPLE", 10_000)
    read = []
    original = BPETokenizer.train.__func__

    def spy(cls, texts, **options):
        def passing():
            for text in texts:
                read.append(text)
                yield text

        return original(cls, passing(), **options)

    monkeypatch.setattr(BPETokenizer, "train", classmethod(spy))
    prepare(tmp_path / "c", folder, vocab_size=300, console=QUIET)
    assert 5_000 < sum(map(len, read)) < 12_000
    assert all(any(f" of {name}," in text for text in read) for name in "abc")


def test_large_vocabularies_take_four_bytes(tmp_path):
    tokenizer = CharTokenizer("x\n" + "".join(map(chr, range(0x10000, 0x10000 + 2**16))))
    assert tokenizer.vocab_size > 2**16
    corpus = prepare(
        tmp_path / "c",
        ["x\U00010001\U0001fffe\n" * 200],
        tokenizer=tokenizer,
        validation=0.2,
        console=QUIET,
    )
    assert corpus.training.dtype == np.uint32
    assert set(corpus.tokenizer.decode(corpus.training[:50].tolist())) == set(
        "x\U00010001\U0001fffe\n"
    )


@pytest.mark.parametrize("kind", ["bpe", "char"])
def test_encoding_many_is_encoding_each(kind):
    texts = ["the cat", "", "the 🎉 mat — naïve"]
    if kind == "char":
        tokenizer = CharTokenizer("".join(texts))
        with pytest.raises(ValueError, match="text holds 'z'"):
            tokenizer.encode_all(["the", "z"])
    else:
        tokenizer = BPETokenizer.train(texts, vocab_size=270, end=True)
        assert tokenizer.tokens([tokenizer.end]) == ["<|endoftext|>"]
        assert BPETokenizer.from_json(tokenizer.to_json()).end == tokenizer.end
        with pytest.raises(ValueError, match="lone surrogate"):
            tokenizer.encode_all(["\ud800"])
        with pytest.raises(ValueError, match=r"at least 257, .* one that ends a document"):
            BPETokenizer.train(texts, vocab_size=256, end=True)
    assert [ids.tolist() for ids in tokenizer.encode_all(texts)] == list(
        map(tokenizer.encode, texts)
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"text\.txt holds no text: 1 file\(s\), all empty or blank"),
        (b" \n\t\n", r"text\.txt holds no text"),
        (b"x", r"the text leaves [01] tokens for (training|validation); give more text"),
        (b"caf\xe9 au lait" * 99, r"text\.txt is not UTF-8 text: byte 0xe9 at offset 3"),
        (b"a" * 2500 + b"\xc3", r"not UTF-8 text: byte 0xc3 at offset 2500"),
    ],
)
def test_a_text_that_is_refused_leaves_nothing(tmp_path, monkeypatch, content, message):
    monkeypatch.setattr(sources, "_BLOCK", 1000)
    (tmp_path / "text.txt").write_bytes(content)
    with pytest.raises(Error, match=message):
        prepare(tmp_path / "c", tmp_path / "text.txt", console=QUIET)
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_a_full_disk_leaves_nothing(folder, tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    message = "could not be written, No space left .*: nothing of it stays; free some space, and"
    with pytest.raises(OSError, match=message) as caught:
        prepare(tmp_path / "c", folder, vocab_size=300, console=QUIET)
    assert caught.value.errno == 28
    assert caught.value.filename == str(tmp_path / "c")
    assert [path.name for path in tmp_path.iterdir()] == ["texts"]


def test_a_failed_write_is_reported_with_folder_and_cure(folder, tmp_path):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(
            OSError, match=r"File too large: nothing .*; prepare it elsewhere"
        ) as error:
            prepare(tmp_path / "c", folder, vocab_size=300, console=QUIET)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert error.value.filename == str(tmp_path / "c")
    assert [path.name for path in tmp_path.iterdir()] == ["texts"]


@pytest.fixture
def mixed(folder):
    """The folder with three files more that are no UTF-8 text."""
    (folder / "deep").mkdir()
    (folder / "deep" / "x.gz").write_bytes(gzip.compress(b"text", mtime=0))
    (folder / "deep" / "y.gz").write_bytes(gzip.compress(b"more", mtime=0))
    (folder / "b-latin1.txt").write_bytes("caf\u00e9 au lait".encode("latin-1"))
    return folder


def test_all_files_that_are_not_text_are_named_at_once(mixed, tmp_path):
    with pytest.raises(Error, match="texts holds other files than UTF-8 text") as caught:
        prepare(tmp_path / "c", mixed, console=QUIET)
    message = str(caught.value)
    assert f"{mixed / 'b-latin1.txt'} is not UTF-8 text: byte 0xe9 at offset 3" in message
    assert "neither are deep/x.gz, deep/y.gz; convert them first, or skip them" in message
    assert "utf8_only=True, on the command line --utf8-only" in message
    assert not (tmp_path / "c").exists()


def test_files_that_are_not_text_are_skipped_with_utf8_only_and_named(mixed, tmp_path):
    console = Console(file=io.StringIO(), width=40)
    corpus = prepare(tmp_path / "c", mixed, vocab_size=300, utf8_only=True, console=console)
    assert console.file.getvalue() == (
        "skipped 3 of 7 files, which are not UTF-8 text: b-latin1.txt, deep/x.gz, deep/y.gz\n"
    )
    assert corpus.manifest["source"]["passed_over"] == 3
    for name in ("b-latin1.txt", "deep/x.gz", "deep/y.gz"):
        (mixed / name).unlink()
    alone = prepare(tmp_path / "d", mixed, vocab_size=300, utf8_only=True, console=console)
    assert alone.fingerprint == corpus.fingerprint
    assert "passed_over" not in alone.manifest["source"]


def test_many_files_that_are_not_text_are_counted(tmp_path):
    (tmp_path / "texts").mkdir()
    for number in range(31):
        (tmp_path / "texts" / f"{number:02}").write_bytes(b"\xff")
    with pytest.raises(Error, match=r"holds no UTF-8 text: .* neither are 01, .* and 10 more"):
        prepare(tmp_path / "c", tmp_path / "texts", utf8_only=True, console=QUIET)
    (tmp_path / "texts" / "00").write_text("some text\n" * 99)
    with pytest.raises(Error, match=r"01 is not .*; neither are 02, .*, 21 and 9 more; conv"):
        prepare(tmp_path / "c", tmp_path / "texts", console=QUIET)


KILLED = """
import os, signal, sys
from regard.gpt import prepare
from regard.gpt.training import prepare as module
module.replace_file = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
prepare(sys.argv[1], ["a line of text\\n" * 99], tokenizer="char")
"""


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is POSIX's")
def test_files_of_a_killed_process_are_removed(folder, tmp_path):
    run_script(KILLED, str(tmp_path / "c"), status=-signal.SIGKILL)
    assert {path.name for path in tmp_path.iterdir()} == {"texts", ".c.tmp", ".c.lock"}
    prepare(tmp_path / "c", folder, tokenizer="char", console=QUIET)
    assert {path.name for path in tmp_path.iterdir()} == {"texts", "c"}


def test_one_process_at_a_time_prepares_a_corpus(folder, tmp_path):
    with FolderLock(tmp_path / ".c.lock") as lock:
        assert lock.acquire()
        with pytest.raises(Error, match=r"another process prepares .*c; wait"):
            prepare(tmp_path / "c", folder, tokenizer="char", console=QUIET)
    prepare(tmp_path / "c", folder, tokenizer="char", console=QUIET)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are POSIX's")
def test_a_pipe_which_could_be_read_but_once_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Error, match="pipe is a pipe or a device, and text is read more than"):
        prepare(tmp_path / "c", tmp_path / "pipe", console=QUIET)


def test_a_byte_order_mark_is_not_text(tmp_path):
    (tmp_path / "text.txt").write_bytes(b"\xef\xbb\xbf" + b"some text\n" * 99)
    corpus = prepare(tmp_path / "c", tmp_path / "text.txt", tokenizer="char", console=QUIET)
    assert corpus.tokenizer.characters == "\n emostx"
    assert read_texts(tmp_path / "text.txt") == ["some text\n" * 99]
    (tmp_path / "bad.txt").write_bytes(b"\xef\xbb\xbf" + b"text\xff")
    with pytest.raises(Error, match="byte 0xff at offset 7"):
        prepare(tmp_path / "d", tmp_path / "bad.txt", console=QUIET)


def test_a_folder_that_is_there_is_not_written_over(folder, tmp_path):
    with pytest.raises(Error, match="texts already exists; prepare into a new folder"):
        prepare(folder, folder, console=QUIET)


def spoiled_manifest(**changes):
    def do(folder):
        path = folder / "corpus.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return do


WHOLE = {"tokens": 9, "bytes": 9, "sha256": "0" * 64}
NO_BYTES = {"training": WHOLE, "validation": WHOLE | {"bytes": None}}
NO_CHECKSUM = {"training": WHOLE | {"sha256": "\ud800"}, "validation": WHOLE}


def flip(name):
    def do(folder):
        data = bytearray((folder / name).read_bytes())
        data[7] ^= 1
        (folder / name).write_bytes(data)

    return do


def cut(folder):
    os.truncate(folder / "training.bin", 100)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, r"training\.bin has 100 bytes and corpus\.json says [\d,]+: it was cut short"),
        (flip("validation.bin"), r"validation\.bin was changed: its checksum"),
        (spoiled_manifest(version=9), "'regard corpus', version 9, and this regard reads"),
        (spoiled_manifest(parts={}), r"corpus\.json is damaged: it has no 'training'"),
        (
            spoiled_manifest(parts=NO_BYTES),
            r"corpus\.json is damaged: its validation has bytes None",
        ),
        (spoiled_manifest(parts=NO_CHECKSUM), "damaged: its training has no checksum"),
        (spoiled_manifest(source=3), r"corpus\.json is damaged: its source"),
        (spoiled_manifest(dtype="object"), r"corpus\.json is damaged: it has no 'object'"),
        (lambda f: (f / "corpus.json").write_bytes(b"[" * 100_000), r"corpus\.json is damaged"),
        (spoiled_manifest(tokenizer="0"), r"tokenizer\.json is not the tokenizer that the corpus"),
        (lambda f: (f / "corpus.json").write_bytes(b"{"), r"corpus\.json is damaged"),
        (lambda f: (f / "corpus.json").unlink(), r"holds no corpus: it has no corpus\.json; make"),
        (lambda f: (f / "tokenizer.json").unlink(), r"it has no tokenizer\.json"),
    ],
)
def test_damage_is_refused(tmp_path, damage, message):
    place = tmp_path / "c"
    prepare(place, [book("a")], tokenizer="char", console=QUIET)
    open_corpus(place)
    damage(place)
    with pytest.raises(Error, match=message):
        open_corpus(place)


def test_progress_is_shown_on_a_terminal_only(folder, tmp_path):
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    prepare(tmp_path / "c", folder, vocab_size=300, console=console)
    assert "vocabulary" in console.file.getvalue()
    assert "encoding" in console.file.getvalue()
    pipe = Console(file=io.StringIO())
    prepare(tmp_path / "d", folder, vocab_size=300, console=pipe)
    assert pipe.file.getvalue() == ""


def test_a_model_may_lie_beside_the_corpus_that_it_is_trained_on(folder, tmp_path):
    """Whose tokenizer stays the same; another file of the folder would be lost."""
    corpus = prepare(tmp_path / "c", folder, tokenizer="char", console=QUIET)
    tokenizer = (corpus.folder / "tokenizer.json").read_bytes()
    gpt = GPTConfig(vocab_size=1, context=8, layers=1, heads=1, dim=4)
    config = TrainConfig(steps=2, warmup=1, batch=2, evaluate_every=2)
    options = {"corpus": corpus.folder, "gpt": gpt, "config": config, "console": QUIET}
    (corpus.folder / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"holds config\.json, which would be lost"):
        train(corpus.folder, **options)
    (corpus.folder / "config.json").unlink()
    train(corpus.folder, **options)
    assert (corpus.folder / "tokenizer.json").read_bytes() == tokenizer
