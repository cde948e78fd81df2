"""``--device``: where a command computes."""

import pytest
import torch
from support import fake_gpu

COMMANDS = {
    "explain": ["explain", "the cat sat", "--layer", "1", "--head", "0"],
    "explain, all heads": ["explain", "the cat sat"],
    "generate": ["generate", "the cat", "--tokens", "4", "--seed", "3"],
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(one, marks=[pytest.mark.thorough] * one.startswith("explain"))
        for one in COMMANDS
    ],
)
def test_a_command_says_the_same_of_a_model_on_a_gpu(regard, model, monkeypatch, name):
    expected = regard(*COMMANDS[name], "--model", model)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("cuda"))
    moved = []
    load = torch.nn.Module.load_state_dict
    monkeypatch.setattr(
        torch.nn.Module,
        "load_state_dict",
        lambda module, state, **options: (
            moved.append({type(t) for t in state.values()}) or load(module, state, **options)
        ),
    )
    with fake_gpu.gpu():
        outputs = regard(*COMMANDS[name], "--model", model, "--device", "cuda:0")
    assert outputs == expected
    assert expected.status == 0
    assert moved == [{fake_gpu.FakeGPUTensor}]


@pytest.mark.parametrize("command", ["explain", "explore", "report", "generate", "train"])
def test_a_device_that_is_not_there_is_refused_in_one_line(misused, command, tmp_path):
    more = ["--out", tmp_path / "m"] if command == "train" else []
    more = ["the"] if command == "generate" else more
    assert "expected cpu, or cuda" in misused(command, *more, "--device", "nowhere")


def test_a_gpu_too_many_is_refused(misused, monkeypatch):
    there = torch.device("cuda")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: there)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    line = misused("explain", "the", "--device", "cuda:2")
    assert "--device is 'cuda:2' and torch finds 2 of cuda" in line
    assert "cuda:1" in line
