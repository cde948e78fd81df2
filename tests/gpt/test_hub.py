"""Models of the Hugging Face hub: from its cache, and fetched into it, against a stand-in."""

from __future__ import annotations

import json
import sys

import pytest
import torch
import transformers
from support import hub

from regard.gpt import GPT, BPETokenizer, CheckpointError, GPTConfig, load, read_gpt2, save
from regard.gpt.gpt2 import read_gpt2_tokenizer

NAME = "owner/small-gpt2"
V = 269


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Folder of a GPT-2 of `transformers`, with more files than are needed."""
    folder = tmp_path_factory.mktemp("models") / "gpt2"
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    sizes = {"vocab_size": V, "n_positions": 31, "n_layer": 3, "n_head": 5, "n_embd": 35}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=None, pad_token_id=0)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    transformers.utils.logging.enable_progress_bar()
    text = ["the cat sat on the mat, the cat sat on the hat"] * 3
    BPETokenizer.train(text, vocab_size=V).save(folder)
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    (folder / "README.md").write_text("its card")
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    hub.point_to(tmp_path / "cache", monkeypatch)
    return tmp_path / "cache"


def same(a, b):
    b = b.state_dict()
    return all(weight.equal(b[name]) for name, weight in a.state_dict().items())


def changed(model, folder, *, without=(), **config):
    """A copy of a model's folder."""
    folder.mkdir(parents=True)
    for file in model.iterdir():
        if file.name not in without:
            (folder / file.name).write_bytes(file.read_bytes())
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | config))
    return folder


@pytest.mark.parametrize("name", [NAME, "gpt2"])
def test_a_name_is_read_from_the_cache_without_a_network(model, cache, name):
    hub.put(cache, name, model)
    expected, words = load(model)
    read, tokenizer = load(name)
    assert same(read, expected)
    assert same(read_gpt2(name), expected)
    for found in (tokenizer, read_gpt2_tokenizer(name)):
        assert found.to_json() == words.to_json()


def test_a_model_is_fetched_once_and_only_what_is_needed_of_it(model, cache, monkeypatch):
    with hub.served({NAME: model}, monkeypatch) as sent:
        with pytest.raises(CheckpointError, match=f"hub's cache {cache} lacks that model: fetch"):
            load(NAME)
        assert sent == []
        fetched, _ = load(NAME, fetch=True)
        assert sorted(sent) == ["config.json", "model.safetensors", "tokenizer.json"]
        del sent[:]
        assert same(load(NAME, fetch=True)[0], fetched)
        assert sent == []
    assert same(load(NAME)[0], load(model)[0])


def test_of_a_tokenizer_no_weights_are_fetched(model, monkeypatch):
    with hub.served({NAME: model}, monkeypatch) as sent:
        read_gpt2_tokenizer(NAME)
        assert sorted(sent) == ["config.json", "tokenizer.json"]
        with pytest.raises(CheckpointError, match=r"lacks its model\.safetensors: fetch it once w"):
            load(NAME)


def test_several_files_are_fetched_and_each_must_be_there(cache, model, tmp_path, monkeypatch):
    theirs = transformers.GPT2LMHeadModel.from_pretrained(model)
    folder = changed(model, tmp_path / "parts", without=["model.safetensors"])
    theirs.save_pretrained(folder, max_shard_size="60KB")
    parts = sorted(path.name for path in folder.glob("model-*"))
    assert len(parts) > 1
    with hub.served({NAME: folder}, monkeypatch) as sent:
        assert same(load(NAME, fetch=True)[0], load(model)[0])
        assert set(parts) < set(sent)
    next(cache.rglob(parts[-1])).unlink()
    with pytest.raises(CheckpointError, match=f"lacks its {parts[-1]}: fetch it once"):
        load(NAME)


@pytest.mark.parametrize(
    ("without", "config", "message"),
    [
        ([], {"model_type": "llama"}, "has model_type 'llama'; only gpt2 is supported"),
        (
            ["config.json"],
            {},
            r"on the Hugging Face hub is no model of transformers: it lacks config\.json",
        ),
        (["model.safetensors"], {}, r"no model\.safetensors but pytorch_model\.bin, .* convert it"),
        (["tokenizer.json"], {}, r"has no tokenizer: neither tokenizer\.json, nor vocab\.json and"),
    ],
)
def test_what_is_no_gpt2_is_refused_before_its_weights_are_fetched(
    model, tmp_path, monkeypatch, without, config, message
):
    folder = changed(model, tmp_path / "other", **config)
    for name in without:
        (folder / name).unlink()
    with hub.served({NAME: folder}, monkeypatch) as sent:
        with pytest.raises(CheckpointError, match=message):
            load(NAME, fetch=True)
        assert set(sent) <= {"config.json"}


def test_a_cached_model_of_another_kind_is_named_without_a_network(model, cache, tmp_path):
    hub.put(cache, NAME, changed(model, tmp_path / "other", model_type="bert"))
    with pytest.raises(CheckpointError, match="has model_type 'bert'; only gpt2 is supported"):
        load(NAME, fetch=True)


def test_what_stands_in_the_way_of_fetching_is_named_with_the_cure(model, monkeypatch):
    with pytest.raises(CheckpointError, match="HF_HUB_OFFLINE forbids it; unset it"):
        load(NAME, fetch=True)
    none = pytest.raises(CheckpointError, match="no such model, or a private one; check the name")
    with hub.served({NAME: model}, monkeypatch), none:
        load("owner/another", fetch=True)
    consent = pytest.raises(
        CheckpointError, match=r"consent; give it on https://.*/owner/gated, and"
    )
    with hub.served({"owner/gated": None}, monkeypatch), consent:
        load("owner/gated", fetch=True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(CheckpointError, match="refused; check the connection to the network"):
        load(NAME, fetch=True)


def test_without_the_library_the_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    message = r"no folder owner/small-gpt2 here, and .* huggingface_hub: pip install .*\[hub\]"
    for read in (load, read_gpt2, read_gpt2_tokenizer):
        with pytest.raises(CheckpointError, match=message):
            read(NAME)


def test_a_path_is_never_looked_up(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    for path, problem in [
        (tmp_path / "gone", "does not exist"),
        (tmp_path.relative_to(tmp_path) / "gone", "does not exist"),
        ("a/b/c", "does not exist"),
        ("../gone", "does not exist"),
        ("a--b", "does not exist"),  # the hub has no such names
        ("file", "is a file"),
    ]:
        with pytest.raises(CheckpointError, match=f"{problem}; expected a model's folder"):
            load(path, fetch=True)


def test_a_folder_comes_before_the_hub(model, cache, tmp_path, monkeypatch):
    hub.put(cache, NAME, model)
    monkeypatch.chdir(tmp_path)
    config = GPTConfig(vocab_size=V, context=5, layers=1, heads=1, dim=3)
    save(NAME, GPT(config), BPETokenizer.load(model))
    assert load(NAME)[0].config == config
