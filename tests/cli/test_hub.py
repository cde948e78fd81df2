"""The commands on a GPT-2 of the hub, by its name: with its layers, heads and vocabulary."""

import _thread
import json
import re
import shutil

import pytest
import torch
from support import hub
from tokenizers import pre_tokenizers

from regard.gpt import GPT, GPTConfig, write_gpt2

NAME = "owner/gpt2"
FETCHED = ["model.safetensors", "vocab.json", "merges.txt"]
COMMANDS = {
    "explain": ["explain", "日本語 the cat"],
    "effects": ["effects", "日本語 the cat"],
    "generate": ["generate", "日本語 the cat", "--tokens", 5],
    "report": ["report", "日本語 the cat"],
    "explore": ["explore", "--no-open", "日本語 the cat"],
}


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory):
    """Folder of an untrained GPT-2, the smallest's shape but for its width."""
    folder = tmp_path_factory.mktemp("models") / "gpt2"
    torch.manual_seed(0)
    sizes = {"vocab_size": 50257, "context": 1024, "layers": 12, "heads": 12, "dim": 24}
    write_gpt2(GPT(GPTConfig(**sizes)), folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(a, b) for a in alphabet for b in alphabet][:50_000]
    tokens = [*alphabet, *map("".join, pairs), "<|endoftext|>"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *map(" ".join, pairs)]))
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    hub.point_to(tmp_path / "cache", monkeypatch)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_name_that_the_cache_lacks_is_refused_with_the_cure(misused, command):
    line = misused(*COMMANDS[command], "--model", NAME)
    assert "no folder owner/gpt2 here" in line
    assert "lacks that model: fetch it once with --fetch, or" in line


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_can_be_fetched_without_a_name(misused, command):
    assert "--fetch needs the name of a model" in misused(*COMMANDS[command], "--fetch")


@pytest.fixture(scope="session")
def small(gpt2, tmp_path_factory):
    """The same of 2 layers × 3 heads."""
    folder = tmp_path_factory.mktemp("models") / "small"
    torch.manual_seed(0)
    sizes = {"vocab_size": 50257, "context": 1024, "layers": 2, "heads": 3, "dim": 24}
    write_gpt2(GPT(GPTConfig(**sizes)), folder)
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(gpt2 / name, folder)
    return folder


def test_each_command_reads_the_cache(regard, small, cache, monkeypatch):
    hub.put(cache, NAME, small)
    title = f"{NAME}: 2 layers × 3 heads, context 1024"
    monkeypatch.setattr("regard.page.Explorer.serve", lambda explorer: explorer.stop())
    done = {command: regard(*COMMANDS[command], "--model", NAME) for command in COMMANDS}
    assert all((one.status, one.err) == (0, "") for one in done.values())
    assert done["explain"].out.splitlines()[0] == done["effects"].out.splitlines()[0] == title
    assert "<0xE6><0x97>│<0xA5><0xE6>│" in done["explain"].out  # tokens that are parts of letters
    assert done["generate"].out.startswith("日本語 the cat")
    assert re.fullmatch(
        r"report\.html: \d\.\d+ MB, opens offline in a browser\n", done["report"].out
    )
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/  \(Ctrl-C ends\)\n", done["explore"].out)


@pytest.mark.thorough
def test_each_command_reads_a_model_of_many_heads(regard, gpt2, cache, monkeypatch):
    hub.put(cache, NAME, gpt2)
    title = f"{NAME}: 12 layers × 12 heads, context 1024"
    explained = regard(*COMMANDS["explain"], "--model", NAME)
    assert explained.out.splitlines()[0] == title
    assert re.findall(r"^ +\d+ ·{12}$", explained.out, flags=re.MULTILINE) == [
        f"{head:>3} {'·' * 12}" for head in range(12)
    ], "a row a head, a letter a layer; untrained heads spread evenly"
    assert len(re.findall(r"^ *\d+\.\d+ spread evenly", explained.out, flags=re.MULTILINE)) == 12
    assert "… 132 more heads" in explained.out
    assert "… 136 more; to first order" in explained.out
    assert "<0xE6><0x97>│<0xA5><0xE6>│" in explained.out  # tokens that are parts of characters
    monkeypatch.setattr("regard.view.effects._ROUNDING", 0.0)  # an untrained model needs nothing
    measured = regard(*COMMANDS["effects"], "--model", NAME, "--over", "heads")
    assert measured.out.splitlines()[0] == title
    assert "… 136 more" in measured.out
    rows = re.findall(r"^ *\d+\.\d+ +[+−]", measured.out, flags=re.MULTILINE)
    assert len(rows) == 8
    assert len(set(map(len, rows))) == 1, "a name such as 11.11 moves no column"
    generated = regard(*COMMANDS["generate"], "--model", NAME)
    assert generated.out.startswith("日本語 the cat")
    reported = regard(*COMMANDS["report"], "--model", NAME)
    assert re.fullmatch(r"report\.html: 0\.\d\d MB, opens offline in a browser\n", reported.out)
    monkeypatch.setattr("regard.page.Explorer.serve", lambda explorer: explorer.stop())
    explored = regard(*COMMANDS["explore"], "--model", NAME)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/  \(Ctrl-C ends\)\n", explored.out)
    for done in (explained, measured, generated, reported, explored):
        assert (done.status, done.err) == (0, "")


def test_a_text_longer_than_the_context_is_refused_with_the_cure(misused, gpt2):
    text = "a cat " * 300
    line = misused("generate", text, "--past", "refuse", "--model", gpt2)
    assert "do not fit into the model's context of 1024; choose --tokens 0 or fewer" in line
    line = misused("report", text, "--model", gpt2)
    assert "144 heads on 1024 tokens stands for 150,994,944 weights" in line
    assert "give at most 965 tokens" in line


def test_what_is_fetched_is_said_on_a_line_and_nothing_is_left_half(
    regard, misused, gpt2, cache, monkeypatch
):
    command = ("generate", "a cat", "--tokens", 1, "--seed", 1, "--model", NAME)
    expected = regard(*command[:-1], gpt2).out
    size = sum((gpt2 / name).stat().st_size for name in FETCHED) / 1e6

    def interrupt(file):
        if file == "model.safetensors":
            _thread.interrupt_main()

    with hub.served({NAME: gpt2}, monkeypatch, before=interrupt):
        cut = regard(*command, "--fetch")
    assert (cut.status, cut.out) == (130, "")
    assert cut.err == f"fetching {NAME} ({size:.1f} MB) into {cache}\n"
    assert not list(cache.rglob("model.safetensors"))
    assert not list(cache.rglob("*.incomplete"))
    assert "lacks its model.safetensors: fetch it once with --fetch, or" in misused(*command)
    with hub.served({NAME: gpt2}, monkeypatch):
        done = regard(*command, "--fetch")
    assert (done.status, done.out, done.err) == (0, expected, cut.err)
    assert regard(*command, "--fetch") == (0, expected, "")
