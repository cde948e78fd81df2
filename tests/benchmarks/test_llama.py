"""What is compared with llama.cpp: the weights under its names, and the table."""

import math
import subprocess
from pathlib import Path

import pytest
import torch

from benchmarks import llama, llama_decoder
from benchmarks.gguf_weights import as_int8, gguf_weights, rounded
from benchmarks.report import Report
from regard.cli.timing import Measured
from regard.gpt import GPT, GPTConfig

SHAPE = {"vocab_size": 11, "context": 7, "layers": 2, "heads": 3, "dim": 12}


def test_every_weight_has_a_name_in_the_file():
    model = GPT(GPTConfig(**SHAPE))
    weights = gguf_weights(model)
    assert len(weights) == len(list(model.parameters()))
    assert weights["blk.1.attn_qkv.weight"].equal(model.h[1].attn.c_attn.weight)
    assert weights["blk.0.ffn_down.bias"].equal(model.h[0].mlp.c_proj.bias)
    assert weights["output_norm.weight"].equal(model.ln_f.weight)


def test_a_model_of_another_layout_is_refused():
    with pytest.raises(ValueError, match="GPT-2's own layout"):
        gguf_weights(GPT(GPTConfig(**SHAPE, norm="rms")))


def test_a_rounded_model_keeps_its_weights():
    model = GPT(GPTConfig(**SHAPE))
    half = rounded(model, torch.bfloat16)
    assert half.wte.weight.equal(model.wte.weight.bfloat16())


def test_ours_is_compared_with_the_better_of_theirs(capsys):
    model = GPT(GPTConfig(**SHAPE))
    weights = {name: llama.Weights(Path(), 3, model, 2) for name in ("bfloat16", "float16")}
    seconds = {
        "regard, bfloat16": [1.0],
        "llama.cpp, bfloat16": [3.0],
        "regard, float16": [2.0],
        "llama.cpp, float16": [1.5],
    }
    report = Report()
    llama.table(report, "made up")
    llama.rows(report, weights, 8, Measured(seconds, limit=512.0))
    printed = {row.split("  ")[0]: row.split() for row in capsys.readouterr().out.splitlines()}
    assert report.counts == (1, [])  # of our rows, the faster has a target: 1.5 times theirs
    ours = printed["regard, bfloat16, 8 at a time"]
    assert ours[-5:] == ["50%", "1.50", "≥", "1.5", "✓"]  # 128 steps a second of 2 bytes each
    theirs = printed["llama.cpp, float16, 8 at a time"]
    assert theirs[-2:] == ["50%", "1.00"]  # 85 steps a second of 3 bytes each
    assert math.isclose(float(printed["regard, float16, 8 at a time"][-2].rstrip("%")), 25)


def test_int8_is_beside_theirs_of_eight_bits(capsys):
    int8 = as_int8(GPT(GPTConfig(**SHAPE)))
    one = llama.Weights.of(Path(), 7, int8)
    # Of each layer 12 · 12 · 12 numbers, 9 · 12 scales and biases and 4 · 12 numbers of norms; 11
    # tokens with their scales, and the last norm.
    assert one.own_size == 2 * 1728 + 132 + 4 * (2 * (108 + 108 + 48) + 11 + 24)
    report = Report()
    llama.table(report, "made up")
    seconds = {"regard, int8": [1.0], "llama.cpp, q8_0": [1.0]}
    llama.rows(report, {"q8_0": one}, 1, Measured(seconds, limit=128.0 * one.own_size))
    row = capsys.readouterr().out.splitlines()[-3].split()
    assert row[:2] + row[-5:-3] == ["regard,", "int8,", "100%", "1.00"]


def test_a_missing_peer_is_named(monkeypatch, capsys):
    monkeypatch.setattr(llama, "find_spec", lambda name: None)
    llama.main()
    assert capsys.readouterr().out.splitlines() == [
        "llama.cpp is not measured: llama_cpp and gguf can't be imported here"
    ]


@pytest.mark.parametrize(("status", "lines"), [(0, 0), (-4, 1)])
def test_a_layout_with_which_llama_cpp_crashes_is_not_used(status, lines, monkeypatch, capsys):
    ended = subprocess.CompletedProcess([], status, "", "")
    monkeypatch.setattr(llama_decoder.subprocess, "run", lambda *_, **__: ended)
    assert llama._can_repack("q8_0", Path("a.gguf")) == (status == 0)
    printed = capsys.readouterr().out.splitlines()
    assert [line.endswith("signal 4 ends its process") for line in printed] == [True] * lines


def test_a_trial_of_llama_cpp_that_fails_is_an_error(monkeypatch):
    ended = subprocess.CompletedProcess([], 1, "", "no such file")
    monkeypatch.setattr(llama_decoder.subprocess, "run", lambda *_, **__: ended)
    with pytest.raises(RuntimeError, match=r"a\.gguf: no such file"):
        llama_decoder.ends_by_signal(Path("a.gguf"))


def test_only_a_tie_may_be_generated_otherwise():
    model = GPT(GPTConfig(**SHAPE)).eval()
    ours = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        logits = model(ours[0, :2])[-1]
    least = ours.clone()
    ours[0, 2], least[0, 2] = logits.argmax(), logits.argmin()
    llama._require_same("float32", model, ours, ours.clone())
    with pytest.raises(RuntimeError, match=r"whose logits differ by .* of the largest"):
        llama._require_same("float32", model, ours, least)
