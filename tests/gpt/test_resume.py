"""A run that is cut off anywhere resumes as if nothing had happened, to the last bit."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch
from rich.console import Console
from support.small_runs import (
    RECIPE,
    TEXT,
    TINY,
    go,
    interrupt,
    losses,
    resume,
    same,
    same_history,
    weights,
)

from regard.gpt import SaveError, head_history, load, load_training


def test_a_resumed_run_is_the_run_that_never_stopped(whole, cut):
    assert load_training(cut)["interrupted"]
    done = resume(cut)
    assert losses(cut) == losses(whole)
    assert same(weights(cut), weights(whole))
    assert same(done.model.state_dict(), weights(whole))
    assert same_history(cut, whole)
    assert {**load_training(cut), "seconds": 0} == {**load_training(whole), "seconds": 0}
    before = (cut / "model.safetensors").stat().st_mtime_ns
    assert resume(cut).record["step"] == 9  # nothing is left to do
    assert losses(cut) == losses(whole)
    assert (cut / "model.safetensors").stat().st_mtime_ns == before


def test_a_run_with_muon_resumes_to_the_last_bit(tmp_path):
    recipe = replace(RECIPE, optimizer="muon")
    go(tmp_path / "whole", config=recipe)
    interrupt(tmp_path / "cut", 5, config=recipe)
    resume(tmp_path / "cut")
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    assert same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))


PROGRAM = """
import json, sys
from rich.console import Console
from regard.gpt import GPTConfig, TrainConfig, train
folder, resume, gpt, config, text = json.loads(sys.argv[1])
train(
    folder, texts=[text], gpt=GPTConfig(**gpt), config=TrainConfig(**config), resume=resume,
    console=Console(quiet=True),
)
"""


@pytest.mark.thorough
@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is POSIX's")
@pytest.mark.parametrize("kills", [(9,), (9, 22)])
def test_a_killed_run_loses_only_what_came_after_the_checkpoint(tmp_path, kills):
    config = replace(RECIPE, steps=40, evaluate_every=4, record_every=0)
    go(tmp_path / "whole", config=config)
    folder = tmp_path / "killed"
    lines = folder / "run" / "metrics.jsonl"
    for before, least in enumerate(kills):
        arguments = json.dumps([str(folder), before > 0, vars(TINY), vars(config), TEXT])
        with subprocess.Popen([sys.executable, "-c", PROGRAM, arguments]) as process:
            while not lines.exists() or lines.read_bytes().count(b"\n") < least:
                with pytest.raises(subprocess.TimeoutExpired):  # it must not end by itself
                    process.wait(timeout=0.002)
            process.send_signal(signal.SIGKILL)  # the moment within an update is chance
            assert process.wait() == -signal.SIGKILL
        step = json.loads((folder / "run.json").read_text())["step"]
        assert lines.read_bytes().count(b"\n") - step <= 4
        load(folder)
    resume(folder)
    assert losses(folder) == losses(tmp_path / "whole")
    assert same(weights(folder), weights(tmp_path / "whole"))


class Fails:
    """A function that fails once, at some call after it was armed."""

    def __init__(self, original, moment):
        self.original, self.moment = original, moment
        self.armed, self.calls = False, 0

    def arm(self, metrics):
        self.armed = metrics.step >= 8

    def call(self, *arguments):
        self.calls += self.armed
        if self.calls == self.moment + 1 and self.armed:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.original(*arguments)


@pytest.mark.parametrize(
    "name",
    [
        "rename",
        *(pytest.param(name, marks=pytest.mark.thorough) for name in ("fsync", "replace", "link")),
    ],
)
def test_a_disk_that_fails_anywhere_in_a_save_leaves_a_run_that_resumes(
    whole, late, tmp_path, monkeypatch, name
):
    """Each call of a kind fails in turn, while the checkpoint of update 9 is written."""
    owner = os if name in {"fsync", "link"} else Path
    original = getattr(owner, name)
    for moment in count():
        folder = tmp_path / f"{name}{moment}"
        shutil.copytree(late, folder)
        fails = Fails(original, moment)
        monkeypatch.setattr(owner, name, lambda *args, fails=fails: fails.call(*args))
        try:
            resume(folder, callbacks=[fails.arm])
        except SaveError as error:
            message = str(error)
        else:
            break
        finally:
            monkeypatch.setattr(owner, name, original)
        assert "No space left on device" in message
        assert "free some space and resume" in message
        load(folder)
        step = json.loads((folder / "run.json").read_text())["step"]
        assert step in {8, 9}
        resume(folder)
        assert losses(folder) == losses(whole)
        assert same(weights(folder), weights(whole))
        kept = sorted(path.name for path in (folder / "run" / "checkpoints").iterdir())
        assert kept == ["00000009"]
        shutil.rmtree(folder)
    assert moment > 0


def test_a_write_beyond_the_file_size_limit_leaves_a_run_that_resumes(whole, cut):
    """A real one, in every library that writes: files may not grow beyond so many bytes."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(metrics):
        if metrics.step == 8:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))

    try:
        with pytest.raises(SaveError, match="File too large") as error:
            resume(cut, callbacks=[limit])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert Path(error.value.filename).name == "model.safetensors"
    assert "the checkpoint of update 8 is whole; resume from it" in str(error.value)
    load(cut)
    resume(cut)
    assert losses(cut) == losses(whole)
    assert not list(cut.rglob(".*"))


def test_a_run_with_damaged_metrics_resumes(whole, cut):
    path = cut / "run" / "metrics.jsonl"
    third, *rest = path.read_bytes().splitlines(keepends=True)[2:]
    path.write_bytes(b"\xff\n{]\n[1]\n{}\n" + third + b"".join(rest) + b"\0" * 99)
    with pytest.warns(RuntimeWarning, match=rf"{path}: the lines of updates 1–2 are damaged or mi"):
        resume(cut)
    assert losses(cut) == losses(whole)[2:]


def flip(data, place):
    """The data with a digit changed, which is still a digit: one bit of it."""
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


@pytest.mark.parametrize(
    ("damage", "lost", "left"),
    [
        (lambda data: b"", "updates 1–5", []),
        (lambda data: data[: len(b"".join(data.splitlines(True)[:2])) + 9], "updates 3–5", [1, 2]),
        (lambda data: flip(data, data.index(b'"loss": ') + 8), "update 1", [2, 3, 4, 5]),
        (lambda data: flip(data, data.rindex(b'"tokens": ') + 10), "update 5", [1, 2, 3, 4]),
        (lambda data: flip(data, data.index(b'"step": 3') + 8), "update 3", [1, 2, 4, 5]),
        (lambda data: data.replace(b"crc32", b"crc33", 1), "update 1", [2, 3, 4, 5]),
        (lambda data: b"".join(data.splitlines(True)[::2]), "updates 2, 4", [1, 3, 5]),
    ],
    ids=["emptied", "cut", "a loss", "a count", "a number of an update", "a name", "lines"],
)
def test_damaged_metrics_are_named_and_left_out(whole, cut, damage, lost, left):
    path = cut / "run" / "metrics.jsonl"
    path.write_bytes(damage(path.read_bytes()))
    message = rf"{path}: the lines of {lost} are damaged or missing, and .*; put back a copy"
    with pytest.warns(RuntimeWarning, match=message):
        head_history(cut)
    with pytest.warns(RuntimeWarning, match=message):
        resume(cut)
    every = losses(whole)
    assert losses(cut) == [line for line in every if line["step"] in [*left, 6, 7, 8, 9]]


def test_metrics_of_an_earlier_version_have_no_checksums(whole, cut):
    path = cut / "run" / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    for line in lines:
        del line["crc32"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    resume(cut)
    assert losses(cut) == losses(whole)


def test_whole_metrics_are_not_called_damaged(cut):
    console = Console(file=io.StringIO(), width=80)
    resume(cut, console=console)
    assert "going on after update 5" in console.file.getvalue()
    assert "damaged" not in console.file.getvalue()


def test_hard_links_are_not_needed(whole, cut, monkeypatch):
    def refused(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    resume(cut)
    assert same(weights(cut), weights(whole))


def test_accumulated_passes_are_one_batch(tmp_path):
    config = replace(RECIPE, record_every=0)
    gpt = replace(TINY, dropout=0.0)  # which is drawn for each pass
    go(tmp_path / "a", gpt=gpt, config=replace(config, batch=4, accumulate=1))
    go(tmp_path / "b", gpt=gpt, config=replace(config, batch=1, accumulate=4))
    for one, other in zip(losses(tmp_path / "a"), losses(tmp_path / "b"), strict=True):
        # Sums of another order: float32's rounding, grown over nine updates.
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
    torch.testing.assert_close(
        weights(tmp_path / "a")["wte.weight"],
        weights(tmp_path / "b")["wte.weight"],
        rtol=1e-3,
        atol=1e-5,
    )
