"""A model small enough to be made for a test, and the command line called in process."""

from typing import NamedTuple

import pytest
import torch

from regard.cli.app import run
from regard.gpt import GPT, BPETokenizer, CharTokenizer, GPTConfig, save

TEXT = "the cat sat on the mat, the dog sat on the cat"


class Done(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """Folder of an untrained model: 2 layers × 3 heads, a context of 23 tokens."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = BPETokenizer.train([TEXT], vocab_size=263)
    config = GPTConfig(vocab_size=263, context=23, layers=2, heads=3, dim=15)
    torch.manual_seed(0)
    save(folder, GPT(config), tokenizer)
    return folder


@pytest.fixture(scope="session")
def letters(tmp_path_factory):
    """Folder of an untrained model that knows the letters of TEXT and nothing else."""
    folder = tmp_path_factory.mktemp("letters")
    tokenizer = CharTokenizer(TEXT)
    config = GPTConfig(vocab_size=tokenizer.vocab_size, context=23, layers=1, heads=1, dim=5)
    torch.manual_seed(0)
    save(folder, GPT(config), tokenizer)
    return folder


@pytest.fixture
def regard(capfd, monkeypatch):
    """Run a command line; its output as if it went to a pipe, 80 columns wide."""
    for name in ("FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments):
        status = run([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return Done(status, captured.out, captured.err)

    return call


@pytest.fixture
def misused(regard):
    """Run a command line that must fail in one line; return that line."""

    def call(*arguments):
        done = regard(*arguments)
        assert done.status == 2
        assert done.out == ""
        assert done.err.startswith("regard: ")
        assert done.err.endswith("\n")
        assert done.err.count("\n") == 1
        return done.err

    return call
