"""What a run tells of itself: numbers, files, what heads did; and what it decides by itself."""

from __future__ import annotations

import json
import math
import re
import sys

import pytest
import torch
from support.small_runs import TEXT, go
from support.summary_writer import record_summaries

from regard._extras import install
from regard.gpt import (
    GPT,
    CheckpointError,
    GPTConfig,
    TensorBoard,
    TrainConfig,
    head_history,
    load,
    model_files,
)
from regard.gpt.training.batches import document_mask
from regard.gpt.training.hardware import Machine, bfloat16, compiling, this_machine
from regard.gpt.training.metrics import operations, perplexity, read_metrics
from regard.lens.naming.roles import Role

TINY = GPTConfig(context=16, layers=2, heads=3, dim=15)


def brief(**changes):
    options = {"tokenizer": "char", "steps": 4, "warmup": 1, "batch": 2, "evaluate_every": 2}
    return TrainConfig(**(options | changes))


def run(folder, *, gpt=TINY, config=None, **options):
    return go(folder, gpt=gpt, config=config or brief(), **options)


def test_a_report_and_its_line_say_the_same(tmp_path):
    updates = []
    run(tmp_path, callbacks=[updates.append])
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert lines == [json.loads(json.dumps(update.numbers())) for update in updates]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert [line["tokens"] for line in lines] == [32, 64, 96, 128]
    for line, update in zip(lines, updates, strict=True):
        assert line["perplexity"] == math.exp(line["loss"])
        assert ("validation_loss" in line) is (line["step"] % 2 == 0)
        assert (update.checkpoint is None) is (line["step"] % 2 == 1)
        assert line["tokens_per_second"] > 0
        assert line["memory"] > 10_000_000
        assert update.model.config.dim == 15
    assert updates[-1].checkpoint.is_dir()
    last = lines[-1]
    assert last["validation_perplexity"] == math.exp(last["validation_loss"])
    # One byte a character: bits a byte are bits a token.
    assert last["bits_per_byte"] == pytest.approx(last["validation_loss"] / math.log(2))
    assert lines[0]["learning_rate"] == 3e-3
    assert perplexity(1e6) == pytest.approx(sys.float_info.max)


def test_operations_are_six_a_parameter_and_those_of_half_a_pattern():
    gpt = GPTConfig(layers=3, heads=2, dim=10)
    # Forward, a token: 2 a weight; scores and their product with the values, 2 · T/2 · E each.
    assert operations(gpt, 1000, length=8) == 3 * (2 * 1000 + 3 * 2 * (2 * 8 / 2 * 10))


@pytest.mark.parametrize(
    ("setting", "has", "dim", "on", "reason"),
    [
        ("auto", None, 4096, False, "this cpu does not multiply bfloat16 itself"),
        ("auto", "AMX", 127, False, "a width of 127 is below"),
        ("auto", "AMX", 128, True, "AMX multiplies bfloat16"),
        ("bfloat16", None, 8, True, "set by precision"),
        ("float32", "AMX", 4096, False, "set by precision"),
    ],
)
def test_bfloat16_is_decided_by_processor_and_width(setting, has, dim, on, reason):
    choice = bfloat16(setting, Machine(device="cpu", bfloat16=has, compiler=None), dim=dim)
    assert choice.on is on
    assert reason in choice.reason


@pytest.mark.parametrize(
    ("setting", "device", "compiler", "on", "reason"),
    [
        ("auto", "cpu", "g++", False, "on a CPU it gains little"),
        ("auto", "cpu", None, False, "no C++ compiler"),
        ("auto", "cuda", "Triton", False, "was not measured"),
        ("auto", "cuda", None, False, "no Triton"),
        ("off", "cpu", "g++", False, "set by compile"),
        ("on", "cpu", "g++", True, "set by compile"),
        ("on", "cuda", "Triton", True, "set by compile"),
        ("on", "mps", None, True, "set by compile"),
    ],
)
def test_compiling_is_decided_by_device_and_compiler(setting, device, compiler, on, reason):
    choice = compiling(setting, Machine(device=device, bfloat16=None, compiler=compiler))
    assert choice.on is on
    assert reason in choice.reason


def test_compiling_for_a_gpu_without_triton_is_refused(monkeypatch):
    monkeypatch.setattr(
        "regard.gpt.training.hardware._bfloat16", lambda device: None
    )  # asks a driver
    monkeypatch.setattr("regard.gpt.training.hardware.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"compile is 'on' and there is no Triton, .* a GPU"):
        compiling("on", this_machine(torch.device("cuda")))


def test_compiling_without_a_compiler_is_refused_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert this_machine(torch.device("cpu")).compiler is None
    with pytest.raises(
        ValueError, match=r"compile is 'on' and there is no C\+\+ compiler, .* g\+\+"
    ):
        run(tmp_path / "m", config=brief(compile="on"))
    assert not (tmp_path / "m").exists()


def test_training_in_bfloat16_comes_near_training_in_float32(tmp_path):
    gpt = GPTConfig(context=16, layers=1, heads=2, dim=32)
    losses = {}
    for precision in ("float32", "bfloat16"):
        config = brief(precision=precision, steps=12)
        done = run(tmp_path / precision, gpt=gpt, config=config)
        losses[precision] = done.record["validation_loss"]
        assert {p.dtype for p in done.model.parameters()} == {torch.float32}
    assert losses["bfloat16"] != losses["float32"]
    # Products to 8 bits: a loss of about 3 differs in the third digit.
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.02)


def test_the_compiled_loss_is_called_in_its_place(tmp_path, monkeypatch):
    called = []

    def compile_(loss):
        def run(ids, *rest):
            called.append(ids.shape)
            return loss(ids, *rest)

        return run

    monkeypatch.setattr(torch, "compile", compile_)
    monkeypatch.setattr("shutil.which", lambda name: "/bin/g++")
    config = brief(compile="on", ramp=0.0)
    run(tmp_path / "m", config=config)
    assert called == [(2, 16)] * 4
    load(tmp_path / "m")


def test_attention_stays_within_a_document():
    ids = torch.tensor([5, 9, 0, 7, 7, 0, 0, 3])
    mask = document_mask(ids, end=0)
    seen = mask.visible(8, 8)
    of = [0, 0, 0, 1, 1, 1, 2, 3]
    assert seen.tolist() == [[a == b for b in of] for a in of]
    assert document_mask(ids, end=None) is None


def test_the_mask_is_that_of_the_batch_in_training_and_validation(tmp_path, monkeypatch):
    seen = []
    original = GPT.loss

    def spy(self, ids, *rest, mask=None):
        seen.append((ids, mask))
        return original(self, ids, *rest, mask=mask)

    monkeypatch.setattr(GPT, "loss", spy)
    gpt = GPTConfig(vocab_size=300, context=16, layers=1, heads=2, dim=8)
    texts = [TEXT[i : i + 40] for i in range(0, 800, 40)]
    config = brief(tokenizer="bpe", document_mask=True)
    done = run(tmp_path / "m", texts=texts, gpt=gpt, config=config)
    assert {ids.shape[-1] for ids, _ in seen} >= {2, 16}
    ends = 0
    for ids, mask in seen:
        rows, length = ids.shape
        for row in range(rows):
            of = (ids[row] == done.tokenizer.end).tolist()
            ends += sum(of)
            document = [sum(of[:i]) for i in range(length)]
            visible = mask.visible(length, length, leading=(rows,))[row]
            assert visible.tolist() == [[a == b for b in document] for a in document]
    assert ends > 5
    with pytest.raises(ValueError, match="document_mask is True and the tokenizer has no token"):
        run(tmp_path / "c", config=brief(document_mask=True))


def test_heads_are_recorded_by_update(tmp_path):
    config = brief(record_every=2, steps=5)
    done = run(tmp_path, config=config)
    recorded = head_history(tmp_path)
    assert recorded.steps == (2, 4)
    assert len(recorded.tokens) == 16
    assert (
        recorded.tokens[:8] == recorded.tokens[8:]
    )  # twice over, so that induction can be measured
    assert recorded.scores.shape == (2, 2, 3, len(recorded.score_names))
    assert recorded.images.shape == (2, 2, 3, 16, 16)
    heads = recorded.heads(4)
    assert [(head.layer, head.head) for head in heads] == [(n, h) for n in (0, 1) for h in range(3)]
    assert recorded.score("induction")[1, 1, 2] == pytest.approx(heads[5].induction)
    with pytest.raises(ValueError, match="name is 'luck'; expected one of resting, "):
        recorded.score("luck")
    with pytest.raises(ValueError, match="step is 3; recorded updates are 2, 4"):
        recorded.heads(3)
    # The last update recorded nothing, so its patterns are looked at here.
    run(tmp_path, config=brief(record_every=2), overwrite=True)
    model, _ = load(tmp_path)
    recorded = head_history(tmp_path)
    _, patterns = model.with_patterns(torch.tensor(recorded.ids))
    images = torch.stack([pattern.dense() for pattern in patterns])
    # A float16 has 11 bits; a picture as large as the pattern is the pattern.
    torch.testing.assert_close(recorded.images[-1], images, rtol=1e-3, atol=1e-4)
    rows = torch.arange(1, 16)
    previous = images[:, :, rows, rows - 1].mean(-1)
    torch.testing.assert_close(recorded.score("previous_token")[-1], previous, rtol=1e-4, atol=1e-5)
    assert done.record["step"] == 5


def test_scores_of_earlier_versions_have_the_names_of_today(tmp_path):
    run(tmp_path, config=brief(record_every=4))
    actual = head_history(tmp_path)
    place = tmp_path / "run" / "patterns"
    probe = (place / "probe.json").read_text()
    (place / "probe.json").write_text(probe.replace("current_token", "same_token"))
    old = [["itself", "same token", "too few to say"], ["too few to say"] * 2 + ["induction"]]
    margins = [0.1, 0.1, 0.03, None, 0.3, 0.1]
    about = {"score": 0.3, "queries": 15, "undecided": None}
    evidence = [about | {"margin": margin} for margin in margins]
    model_files.write(
        place / "00000004.safetensors",
        {"scores": actual.scores[0], "images": actual.images[0].half()},
        about={"roles": json.dumps(old), "evidence": json.dumps(evidence)},
    )
    again = head_history(tmp_path)
    assert again.score_names == actual.score_names
    short = "text too short to tell"
    assert again.roles == (
        (("current token", "duplicate token", "between two names"), (short, short, "induction")),
    )
    assert [head.role for head in again.heads(4)][1] is Role.DUPLICATE


def test_a_probe_of_ones_own(tmp_path):
    config = brief(record_every=4, probe="the dog and the fox")
    run(tmp_path, config=config)
    assert (
        "".join(head_history(tmp_path).tokens) == "the dog and the "
    )  # as much as the context holds
    assert TrainConfig(probe="\ufeffthe\r\ndog\r").probe == "the\ndog\n"
    (tmp_path / "run" / "patterns" / "00000004.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="patterns is damaged"):
        head_history(tmp_path)


def test_a_run_without_recordings_says_so(tmp_path):
    run(tmp_path)
    with pytest.raises(CheckpointError, match="no recorded patterns; train with record_every"):
        head_history(tmp_path)


def test_tensorboard_is_named_where_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr("regard.gpt.training.callbacks.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=re.escape(install("trackers"))):
        TensorBoard(tmp_path)


def test_tensorboard_gets_every_number(tmp_path, monkeypatch):
    calls = record_summaries(monkeypatch)
    monkeypatch.setattr("regard.gpt.training.callbacks.find_spec", lambda name: object())
    board = TensorBoard(tmp_path / "board")
    run(tmp_path / "m", callbacks=[board])
    assert calls[0] == (str(tmp_path / "board"), 1)
    assert calls[-1] == "flush"
    numbers = [entry for entry in calls[1:] if entry != "flush"]
    assert [step for name, _, step in numbers if name == "loss"] == [1, 2, 3, 4]
    assert [step for name, _, step in numbers if name == "validation_loss"] == [2, 4]
