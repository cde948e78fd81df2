"""A model's folder can be loaded at any moment, or says what is wrong with it."""

from __future__ import annotations

import json
import os
import random
import shutil
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from regard.errors import Error
from regard.gpt import (
    GPT,
    BPETokenizer,
    CharTokenizer,
    CheckpointError,
    GPTConfig,
    load,
    load_training,
    model_files,
    save,
)

TOKENIZER = CharTokenizer("abcdefg")
CONFIG = GPTConfig(vocab_size=7, context=5, layers=2, heads=2, dim=6)


def make(seed, config=CONFIG):
    torch.manual_seed(seed)
    return GPT(config)


def same(a, b):
    b = b.state_dict()
    return all(weight.equal(b[name]) for name, weight in a.state_dict().items())


def test_a_saved_model_loads_unchanged(tmp_path):
    model = make(0).train()
    before = torch.get_rng_state()
    save(tmp_path / "deep" / "m", model, TOKENIZER, training={"step": 3})
    loaded, tokenizer = load(tmp_path / "deep" / "m")
    assert torch.get_rng_state().equal(before)
    assert same(loaded, model)
    assert loaded.config == CONFIG
    assert not loaded.training
    assert model.training
    assert tokenizer.decode([0, 6]) == "ag"
    assert load_training(tmp_path / "deep" / "m") == {"step": 3}
    ids = torch.tensor([1, 2, 3])
    assert loaded(ids).equal(model.eval()(ids))


def test_half_precision_comes_back_as_float32(tmp_path):
    model = make(0).half()
    save(tmp_path, model, TOKENIZER)
    kept = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert {weight.dtype for weight in kept.values()} == {torch.float16}
    loaded, _ = load(tmp_path)
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}
    assert same(loaded, model.float())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_file_of_half_precision_is_loaded_exactly(tmp_path, dtype):
    model = make(0)
    save(tmp_path / "m", model, TOKENIZER, dtype=dtype)
    assert same(model, make(0)), "the model itself stays as it was"
    kept = safetensors.torch.load_file(tmp_path / "m" / "model.safetensors")
    assert {weight.dtype for weight in kept.values()} == {dtype}
    loaded, _ = load(tmp_path / "m")
    for name, weight in loaded.state_dict().items():
        assert weight.dtype == torch.float32
        assert weight.double().equal(kept[name].double()), name
    assert same(loaded, make(0).to(dtype).float())


def test_files_have_the_usual_permissions(tmp_path):
    save(tmp_path / "m", make(0), TOKENIZER)
    (tmp_path / "plain").write_text("")
    expected = (tmp_path / "plain").stat().st_mode
    assert {path.stat().st_mode for path in (tmp_path / "m").iterdir()} == {expected}


@pytest.mark.parametrize("moment", range(8))
def test_a_save_that_fails_leaves_the_old_model_or_the_new_one(tmp_path, monkeypatch, moment):
    old, new = make(0), make(1)
    save(tmp_path, old, TOKENIZER, training={"step": 1})
    names = {path.name for path in tmp_path.iterdir()}
    calls = 0

    def failing(original):
        def call(*arguments):
            nonlocal calls
            calls += 1
            if calls > moment:
                raise OSError("no space left")
            return original(*arguments)

        return call

    monkeypatch.setattr(os, "fsync", failing(os.fsync))
    monkeypatch.setattr(Path, "replace", failing(Path.replace))
    if moment < 8:  # four files, each synced and renamed
        with pytest.raises(OSError, match="no space left"):
            save(tmp_path, new, TOKENIZER, training={"step": 2})
    monkeypatch.undo()
    assert {path.name for path in tmp_path.iterdir()} == names
    loaded, _ = load(tmp_path)
    assert same(loaded, new if moment >= 7 else old)
    assert load_training(tmp_path) == {"step": 1}


@pytest.mark.parametrize("moment", range(6))
def test_a_first_save_that_fails_leaves_no_model(tmp_path, monkeypatch, moment):
    calls = 0
    original = Path.replace

    def failing(self, target):
        nonlocal calls
        calls += 1
        if calls > moment % 3:
            raise OSError("no space left")
        return original(self, target)

    monkeypatch.setattr(Path, "replace", failing)
    with pytest.raises(OSError, match="no space left"):
        save(tmp_path, make(0), TOKENIZER)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="is not a model"):
        load(tmp_path)
    save(tmp_path, make(0), TOKENIZER)
    assert same(load(tmp_path)[0], make(0))


def test_another_model_is_not_written_over(tmp_path):
    save(tmp_path, make(0), TOKENIZER)
    other = GPTConfig(vocab_size=7, context=5, layers=1, heads=2, dim=6)
    with pytest.raises(CheckpointError, match=r"holds another config\.json"):
        save(tmp_path, make(0, other), TOKENIZER)
    with pytest.raises(CheckpointError, match=r"holds another tokenizer\.json"):
        save(tmp_path, make(0), CharTokenizer("tuvwxyz"))
    save(tmp_path, make(1), TOKENIZER)
    assert same(load(tmp_path)[0], make(1))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_file_of_something_else_is_not_written_over(tmp_path, name):
    (tmp_path / name).write_text('{"port": 8080}')
    with pytest.raises(CheckpointError, match=f"holds another {name}, which would be lost"):
        save(tmp_path, make(0), TOKENIZER)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == '{"port": 8080}'
    save(tmp_path, make(0), TOKENIZER, overwrite=True)
    assert same(load(tmp_path)[0], make(0))


def test_weights_without_a_configuration_are_not_written_over(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"weights of something else")
    with pytest.raises(CheckpointError, match=r"holds another model\.safetensors"):
        save(tmp_path, make(0), TOKENIZER)
    assert (tmp_path / "model.safetensors").read_bytes() == b"weights of something else"


def test_a_model_is_the_same_however_its_files_are_written(tmp_path):
    save(tmp_path, make(0), TOKENIZER)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["qk_norm"]  # which an earlier version did not know
    (tmp_path / "config.json").write_text(json.dumps(config))
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer, indent=1, sort_keys=True))
    save(tmp_path, make(1), TOKENIZER)
    assert same(load(tmp_path)[0], make(1))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(CheckpointError, match=r"holds another config\.json"):
        save(tmp_path, make(1), TOKENIZER)


def test_another_model_is_replaced_with_overwrite_and_its_record_too(tmp_path, monkeypatch):
    save(tmp_path, make(0), TOKENIZER, training={"step": 1})
    (tmp_path / "notes.txt").write_text("kept")
    other = GPTConfig(vocab_size=7, context=3, layers=1, heads=2, dim=6)

    def full(_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        save(tmp_path, make(2, other), CharTokenizer("tuvwxyz"), overwrite=True)
    monkeypatch.undo()
    assert same(load(tmp_path)[0], make(0))
    save(tmp_path, make(2, other), CharTokenizer("tuvwxyz"), overwrite=True)
    loaded, tokenizer = load(tmp_path)
    assert same(loaded, make(2, other))
    assert tokenizer.decode([0]) == "t"
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"config.json", "tokenizer.json", "model.safetensors", "notes.txt"}


def test_the_tokenizer_must_be_the_models(tmp_path):
    with pytest.raises(ValueError, match="tokenizer has 2 tokens and the model's vocabulary is 7"):
        save(tmp_path, make(0), CharTokenizer("ab"))


def spoil(name, data):
    def do(folder):
        (folder / name).write_bytes(data)

    return do


def configure(**sizes):
    return spoil("config.json", json.dumps(asdict(replace(CONFIG, **sizes))).encode())


def flip_a_bit(folder):
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)


def forget_the_others(folder):
    """Weights as earlier versions wrote them: with a checksum of themselves alone."""
    path = folder / "model.safetensors"
    model_files.write(path, safetensors.torch.load_file(path))


def rewrite_weights(folder, change):
    path = folder / "model.safetensors"
    weights = safetensors.torch.load_file(path)
    change(weights)
    safetensors.torch.save_file(weights, path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "config.json").unlink(), r"is not a model: it has no config\.json; give a"),
        (lambda f: (f / "tokenizer.json").unlink(), r"it has no tokenizer\.json"),
        (lambda f: (f / "model.safetensors").unlink(), r"it has no model\.safetensors"),
        (spoil("config.json", b"{"), r"config\.json is damaged"),
        (spoil("config.json", b"\xff"), r"config\.json is damaged"),
        (spoil("config.json", b"[]"), r"config\.json is damaged: expected a JSON object"),
        (spoil("config.json", b"[" * 100_000), r"config\.json is damaged: .* nested too deep"),
        (configure(layers=10**9), r"does not fit config\.json: it has 2 layers, expected 10{9}"),
        (configure(context=10**9), r"wpe\.weight has shape \(5, 6\), expected \(10{9}, 6\)"),
        (configure(dim=10**9), r"wpe\.weight has shape \(5, 6\), expected \(5, 10{9}\)"),
        (spoil("config.json", b'{"size": 1}'), r"does not describe a GPT: .*size"),
        (spoil("config.json", b'{"layers": 0}'), r"does not describe a GPT: .*layers is 0"),
        (spoil("tokenizer.json", b"{}"), r"tokenizer\.json is damaged: not a tokenizer"),
        (spoil("tokenizer.json", b'{"type": "characters"}'), r"tokenizer\.json is damaged"),
        (
            spoil("tokenizer.json", b'{"type": "characters", "characters": "ab"}'),
            r"has 2 tokens and config\.json says vocab_size=7: the files belong to different",
        ),
        (spoil("model.safetensors", b"\0" * 20), r"model\.safetensors is damaged"),
        (flip_a_bit, r"model\.safetensors is damaged: its tensors were changed after it was"),
        (
            lambda f: rewrite_weights(f, lambda w: w.pop("wpe.weight")),
            r"does not fit config\.json: wpe\.weight is missing",
        ),
        (
            lambda f: rewrite_weights(f, lambda w: w.update(more=torch.zeros(2))),
            r"does not fit config\.json: it has more, which such a model does not have",
        ),
        (
            lambda f: rewrite_weights(f, lambda w: w.update({"wpe.weight": torch.zeros(4, 6)})),
            r"wpe\.weight has shape \(4, 6\), expected \(5, 6\)",
        ),
    ],
)
def test_a_damaged_folder_is_refused_with_the_reason(tmp_path, damage, message):
    save(tmp_path, make(0), TOKENIZER)
    forget_the_others(tmp_path)  # else a checksum is all that is reported
    damage(tmp_path)
    with pytest.raises(CheckpointError, match=message) as caught:
        load(tmp_path)
    assert isinstance(caught.value, Error)
    assert isinstance(caught.value, ValueError)


ROTARY = GPTConfig(
    vocab_size=7, context=16, layers=2, heads=6, dim=24, positions="rotary", window=9,
    global_every=2, groups=3, dropout=0.1, hidden=8,
)  # fmt: skip
OTHER = {
    "vocab_size": 8, "context": 12, "layers": 3, "heads": 3, "dim": 12, "dropout": 0.0,
    "bias": False, "positions": "learned", "rotary_base": 90_000.0, "groups": 6, "qk_norm": True,
    "window": 1, "global_every": 1, "norm": "rms", "norm_eps": 1e-4, "mlp": "swiglu",
    "hidden": None, "initial_std": 0.05, "tied": False, "head_width": 8, "embedding_factor": 2.0,
    "rotary_frequencies": (0.5, 0.1), "window_rotary_base": 50.0, "score_scale": 0.5,
    "score_softcap": 3.0, "logit_softcap": 3.0, "output_norms": True,
}  # fmt: skip


@pytest.mark.parametrize("field", [field.name for field in fields(GPTConfig)])
def test_no_field_of_a_model_can_be_changed_beside_its_weights(tmp_path, field):
    save(tmp_path, make(0, ROTARY), TOKENIZER)
    other = {**asdict(ROTARY), field: OTHER[field]}
    GPTConfig(**other)  # a model that there could be
    (tmp_path / "config.json").write_text(json.dumps(other))
    with pytest.raises(CheckpointError, match=r"config\.json is damaged: it was changed after mod"):
        load(tmp_path)


BYTES = BPETokenizer.train(["the cat sat on the mat, the cat"], vocab_size=263, end=True)


@pytest.mark.each_once
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize("tokenizer", [TOKENIZER, BYTES], ids=["characters", "bytes"])
def test_a_flipped_bit_is_refused_or_changes_nothing(tmp_path, name, tokenizer):
    config = replace(ROTARY, vocab_size=tokenizer.vocab_size)
    model = make(0, config)
    save(tmp_path, model, tokenizer)
    path, refused = tmp_path / name, 0
    whole = path.read_bytes()
    for place in random.Random(0).sample(range(8 * len(whole)), 60):
        data = bytearray(whole)
        data[place // 8] ^= 1 << place % 8
        path.write_bytes(data)
        try:
            loaded, words = load(tmp_path)
        except CheckpointError:
            refused += 1
            continue
        assert loaded.config == config
        assert words.to_json() == tokenizer.to_json()
        assert same(loaded, model)
    assert refused > 50  # but for white space, and what the header says of its own checksums


def test_a_json_file_may_be_formatted_otherwise_with_the_same_content(tmp_path):
    save(tmp_path, make(0), TOKENIZER)
    for name in ("config.json", "tokenizer.json"):
        content = json.loads((tmp_path / name).read_text())
        lines = json.dumps(content, indent=3, sort_keys=True).replace("\n", "\r\n")
        (tmp_path / name).write_bytes(lines.encode())
    assert same(load(tmp_path)[0], make(0))


def test_weights_that_carry_no_checksums_are_loaded(tmp_path):
    save(tmp_path, make(0), TOKENIZER)
    forget_the_others(tmp_path)
    assert same(load(tmp_path)[0], make(0))
    rewrite_weights(tmp_path, lambda _: None)
    assert same(load(tmp_path)[0], make(0))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_the_files_of_two_models_do_not_make_one(tmp_path, name):
    save(tmp_path / "a", make(0), TOKENIZER)
    save(tmp_path / "b", make(0, replace(CONFIG, heads=3)), CharTokenizer("tuvwxyz"))
    shutil.copy(tmp_path / "b" / name, tmp_path / "a" / name)
    with pytest.raises(CheckpointError, match=f"{name} is damaged: .* belongs to another model"):
        load(tmp_path / "a")


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="missing does not exist; expected a model's folder"):
        load(tmp_path / "missing")
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="file is a file; expected a model's folder"):
        load(tmp_path / "file")
    with pytest.raises(CheckpointError, match=r"no config\.json, tokenizer\.json, model\.safe"):
        load(tmp_path)


def test_a_model_without_a_record_is_named(tmp_path):
    save(tmp_path, make(0), TOKENIZER)
    with pytest.raises(CheckpointError, match=r"has no training\.json"):
        load_training(tmp_path)
    (tmp_path / "training.json").write_text(json.dumps([1]))
    with pytest.raises(CheckpointError, match=r"training\.json is damaged"):
        load_training(tmp_path)
