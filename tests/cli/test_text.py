"""Every way in which a text or a model cannot be read, for every command that reads one."""

import io
import shutil

import pytest
import torch

from regard.gpt import GPT, CharTokenizer, GPTConfig, load, read_texts, save

READERS = ["explain", "generate"]


@pytest.fixture(params=READERS)
def command(request):
    return request.param


def test_an_empty_text(misused, command, model):
    assert "the text is empty" in misused(command, "", "--model", model)


def test_an_empty_file(misused, command, model, tmp_path):
    file = tmp_path / "empty.txt"
    file.write_bytes(b"")
    assert f"{file} is empty" in misused(command, "--file", file, "--model", model)


def test_empty_standard_input(misused, command, model, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert "standard input is empty" in misused(command, "-", "--model", model)


def test_closed_standard_input(misused, command, model, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    assert "standard input is closed" in misused(command, "-", "--model", model)


def test_a_missing_file(misused, command, model, tmp_path):
    file = tmp_path / "missing.txt"
    assert f"{file} does not exist" in misused(command, "--file", file, "--model", model)


def test_a_folder_instead_of_a_file(misused, command, model, tmp_path):
    assert f"{tmp_path} is a folder" in misused(command, "--file", tmp_path, "--model", model)


def test_a_file_below_a_file(misused, command, model, tmp_path):
    (tmp_path / "a").write_bytes(b"x")
    line = misused(command, "--file", tmp_path / "a" / "b", "--model", model)
    assert "cannot be read: Not a directory" in line


def test_a_file_that_is_not_utf8(misused, command, model, tmp_path):
    file = tmp_path / "latin.txt"
    file.write_bytes(b"caf\xe9 noir")
    line = misused(command, "--file", file, "--model", model)
    assert f"{file} is not UTF-8 text: byte 0xe9 at offset 3; convert it first" in line


@pytest.mark.parametrize("source", ["a file", "standard input"])
def test_a_text_that_is_too_long(misused, command, model, monkeypatch, tmp_path, source):
    monkeypatch.setattr("regard.cli.text._MOST_BYTES", 2**20)
    file = tmp_path / "long.txt"
    file.write_bytes(b"a" * (2**20 + 1))
    with file.open("rb") as opened:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(opened))
        text = ("-",) if source == "standard input" else ("--file", file)
        line = misused(command, *text, "--model", model)
    assert "has more than 1 MiB: give a part of it" in line


def test_a_byte_order_mark_is_no_part_of_the_text(regard, model, tmp_path):
    with_mark, without = tmp_path / "with.txt", tmp_path / "without.txt"
    with_mark.write_bytes(b"\xef\xbb\xbfThe cat")
    without.write_bytes(b"The cat")
    for options in (["explain"], ["generate", "--temperature", 0, "--tokens", 5]):
        one, other = (
            regard(*options, "--file", file, "--model", model).out for file in (with_mark, without)
        )
        assert one == other


@pytest.fixture(scope="module")
def of_lines(tmp_path_factory):
    """A model of the characters that training reads in a file with CRLF, and two such files."""
    folder = tmp_path_factory.mktemp("lines")
    (folder / "crlf.txt").write_bytes(b"the cat\r\nsat\r\n\r\non\rthe mat")
    (folder / "lf.txt").write_bytes(b"the cat\nsat\n\non\nthe mat")
    tokenizer = CharTokenizer("".join(read_texts(folder / "crlf.txt")))
    torch.manual_seed(0)
    config = GPTConfig(vocab_size=tokenizer.vocab_size, context=61, layers=1, heads=1, dim=5)
    save(folder / "model", GPT(config), tokenizer)
    return folder


@pytest.mark.parametrize(
    ("options", "source"),
    [
        *((["explain"], source) for source in ("a file", "standard input", "an argument")),
        (["effects"], "a file"),
        (["generate", "--temperature", 0, "--tokens", 5], "standard input"),
        (
            ["trace", "--question", "the\r\nmat", "--answer", "sat\rcat", "--neutral", "cat"],
            "a file",
        ),
    ],
    ids=lambda given: given if isinstance(given, str) else given[0],
)
def test_line_ends_are_read_as_in_training(regard, of_lines, monkeypatch, options, source):
    outputs = []
    for file in (of_lines / "crlf.txt", of_lines / "lf.txt"):
        data = file.read_bytes()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
        sources = {"a file": ["--file", file], "standard input": ["-"]}
        arguments = sources.get(source, [data.decode()])
        model = ["--model", of_lines / "model"]
        if options[0] == "trace":
            arguments, model = ["--file", file], [of_lines / "model"]
        done = regard(*options, *arguments, *model)
        assert (done.status, done.err) == (0, "")
        outputs.append(done.out)
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("spelled", ["the same", "a link"])
def test_the_text_is_not_replaced_by_what_is_made_of_it(misused, model, tmp_path, spelled):
    file, out = tmp_path / "text.txt", tmp_path / "link.txt"
    file.write_text("The cat")
    out.symlink_to(file)
    out = file if spelled == "the same" else out
    line = misused("report", "--file", file, "--out", out, "--model", model)
    assert f"--out {out} is the text itself, which would be lost" in line
    assert file.read_text() == "The cat"


def test_an_argument_that_is_not_utf8(misused, command, model):
    argument = b"caf\xe9".decode(errors="surrogateescape")
    line = misused(command, argument, "--model", model)
    assert "the text is not UTF-8 text: byte 0xe9 at offset 3; convert it first" in line
    line = misused(command, "a\ud800b", "--model", model)
    assert "the text holds half of a surrogate pair, U+D800 at index 1: leave it out" in line


def test_a_model_that_gives_no_numbers(misused, command, model, tmp_path):
    network, tokenizer = load(model)
    with torch.no_grad():
        network.ln_f.weight.fill_(
            3e38
        )  # near the largest of float32, so that logits are not finite
    save(tmp_path, network, tokenizer)
    assert "its training diverged" in misused(command, "the", "--model", tmp_path)


def test_two_texts_are_refused(misused, command, model, tmp_path):
    assert "given twice" in misused(command, "a", "--file", tmp_path, "--model", model)


def test_a_model_that_is_not_there(misused, command, tmp_path):
    folder = tmp_path / "missing"
    assert f"{folder} does not exist" in misused(command, "a", "--model", folder)


def test_a_folder_that_is_no_model(misused, command, tmp_path):
    assert f"{tmp_path} is not a model" in misused(command, "a", "--model", tmp_path)


def test_a_file_instead_of_a_model(misused, command, model):
    file = model / "config.json"
    assert f"{file} is a file" in misused(command, "a", "--model", file)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize("damage", ["cut", "emptied", "garbled"])
def test_a_damaged_model(misused, command, model, tmp_path, name, damage):
    folder = tmp_path / "damaged"
    shutil.copytree(model, folder)
    data = (folder / name).read_bytes()
    content = {"cut": data[: len(data) // 2], "emptied": b"", "garbled": b"\xff" * len(data)}
    (folder / name).write_bytes(content[damage])
    assert name in misused(command, "a", "--model", folder)


def test_no_prompt(misused, model):
    assert "the text to continue is missing" in misused("generate", "--model", model)
