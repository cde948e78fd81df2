"""`regard atlas`: a folder of pages, parts, resuming, and what is refused."""

import json

import pytest

CORPUS = {
    "one.txt": "Tom had a red kite and a blue drum. Tom wanted the blue drum. " * 3,
    "two.txt": "The cat sat. The cat ran. The cat sat on the mat and the cat slept. " * 2,
    "rows.jsonl": '{"text": "Once upon a time there was a girl who had a dog."}\n',
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    for name, content in CORPUS.items():
        (folder / name).write_text(content)
    return folder


def rows(folder):
    return json.loads((folder / "atlas.json").read_bytes())["rows"]


@pytest.mark.thorough
def test_parts_make_the_folder_that_one_run_makes(regard, corpus, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    done = regard("atlas", "--corpus", corpus, "--length", 31, "--out", whole)
    assert done.status == 0
    assert "of 3 documents; 2 longer than 31 tokens" in done.err
    assert "20 heads over" in done.out
    assert f"open {whole / 'index.html'}" in done.out
    assert (whole / "index.html").is_file()
    assert (whole / "L3H4" / "index.html").is_file()
    options = ("--corpus", corpus, "--length", 31, "--out", parts)
    for part in ("0/2", "1/2"):
        done = regard("atlas", *options, "--shard", part)
        assert (done.status, done.out) == (
            0,
            f"{parts}: part {part} is read; --join puts all 2 together\n",
        )
        assert not (parts / "index.html").exists()
    assert regard("atlas", "--corpus", corpus, "--out", parts, "--join").status == 0
    assert rows(parts) == rows(whole)
    # Nothing is left to read: the same folder is made again.
    done = regard("atlas", "--corpus", corpus, "--length", 31, "--out", whole, "--resume")
    assert (done.status, rows(whole)) == (0, rows(parts))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--tokens", "many"), "--tokens is 'many'; expected a number such as 5000, 200k or 1M"),
        (("--shard", "2/2"), "--shard is '2/2'; expected a part from 0 and their number, as 0/4"),
        (("--shard", "0"), "--shard is '0'; expected a part from 0 and their number, as 0/4"),
        (("--effects", "2"), "--effects is 2.0; expected a share"),
        (("--length", "99999"), "--length is 99999, but the model's context is"),
        (("--join", "--resume"), "--join goes with none of --resume, --shard and --ray"),
        (("--join", "--seed", "3"), "--join goes with none of --tokens, --length, --effects"),
        (("--ray", "--device", "cuda"), "--ray goes with none of --resume, --shard, --device"),
        (
            ("--shard", "0/2", "--parquet", "table"),
            "are of the whole corpus: give them with --join",
        ),
        (("--join",), "holds no shards of an atlas"),
    ],
)
def test_what_has_no_meaning_is_refused_in_a_line(regard, corpus, tmp_path, options, message):
    done = regard("atlas", "--corpus", corpus, "--out", tmp_path / "atlas", *options)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("regard: ")
    assert message in done.err
    assert done.err.count("\n") == 1


def test_a_corpus_that_is_none_is_refused_in_a_line(regard, tmp_path):
    (tmp_path / "image.png").write_bytes(b"\x89PNG\0")
    (tmp_path / "empty").mkdir()
    (tmp_path / "blank.txt").write_text(" \n")
    for path, message in (
        ("image.png", "is no text in UTF-8"),
        ("empty", "holds no file"),
        ("blank.txt", "corpus holds no text of two tokens or more"),
        ("none", "does not exist"),
    ):
        done = regard("atlas", "--corpus", tmp_path / path, "--out", tmp_path / "atlas")
        assert (done.status, done.out) == (2, "")
        assert message in done.err
        assert done.err.count("\n") == 1


def test_a_folder_that_was_begun_is_kept_unless_it_is_resumed(regard, corpus, tmp_path):
    options = ("atlas", "--out", tmp_path)
    assert regard(*options, "--corpus", corpus / "one.txt").status == 0
    done = regard(*options, "--corpus", corpus / "one.txt")
    assert done.status == 2
    assert "give --resume, or another folder" in done.err
    done = regard(*options, "--corpus", corpus / "two.txt", "--resume")
    assert done.status == 2
    assert "can't be resumed" in done.err
