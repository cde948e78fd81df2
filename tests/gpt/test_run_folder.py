"""The folder of a run: damage, locks, leftovers, permissions."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from stat import S_IMODE

import pytest
from support.small_runs import RECIPE, go, losses, resume

from regard.gpt import CheckpointError, load


def flip(path):
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    replaced = path.with_suffix(".new")  # the file has another name too
    replaced.write_bytes(data)
    replaced.replace(path)


def go_back(path):
    state = json.loads(path.read_text())
    state["progress"]["step"] -= 1
    path.write_text(json.dumps(state))


def truncate(path):
    replaced = path.with_suffix(".new")
    replaced.write_bytes(path.read_bytes()[:-10])
    replaced.replace(path)


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("model.safetensors", flip, r"model\.safetensors is damaged: its tensors were changed"),
        ("model.safetensors", truncate, r"model\.safetensors is damaged"),
        ("optimizer.safetensors", flip, r"optimizer\.safetensors is damaged: its tensors were"),
        ("optimizer.safetensors", truncate, r"optimizer\.safetensors is damaged"),
        ("optimizer.safetensors", Path.unlink, r"it has no optimizer\.safetensors"),
        ("state.json", truncate, r"state\.json is damaged"),
        ("state.json", go_back, r"state\.json is damaged: it was changed after it was written"),
        ("state.json", Path.unlink, r"it has no state\.json"),
    ],
)
def test_a_damaged_checkpoint_is_refused(cut, name, damage, message):
    damage(cut / "run" / "checkpoints" / "00000005" / name)
    with pytest.raises(CheckpointError, match=message):
        resume(cut)
    load(cut)  # the model beside it is whole


def pointer(**changes):
    return json.dumps({"format": "regard run", "version": 1, "run": "run", "step": 5, **changes})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"holds no checkpoint to resume from: it has no run\.json"),
        ("{", r"run\.json is damaged"),
        (pointer(version=2), r"version 2, and this regard reads"),
        (pointer(run="../.."), r"run\.json is damaged: it names no checkpoint"),
        (pointer(run=["run"]), r"run\.json is damaged: it names no checkpoint"),
        (pointer(step=10**300), r"run\.json is damaged: it names no checkpoint"),
        (pointer(step=6), r"names the checkpoint .*00000006, which is not there"),
    ],
)
def test_a_folder_without_a_checkpoint_is_refused(cut, content, message):
    if content is None:
        (cut / "run.json").unlink()
    else:
        (cut / "run.json").write_text(content)
    with pytest.raises(CheckpointError, match=message):
        resume(cut)


def test_one_process_at_a_time_trains_in_a_folder(whole, cut, tmp_path):
    refused = []

    def begin(metrics):
        for options in ({"overwrite": True}, {"resume": True, "gpt": None, "config": None}):
            with pytest.raises(CheckpointError, match=r"another process trains in .*; wait until"):
                go(cut, **options)
            refused.append(metrics.step)

    resume(cut, callbacks=[begin])
    assert refused == [6, 6, 7, 7, 8, 8, 9, 9]
    assert losses(cut) == losses(whole)

    def begin_too(metrics):
        if metrics.step < 3:
            with pytest.raises(CheckpointError, match="another process trains in"):
                go(tmp_path / "n")

    # Before its first checkpoint nothing else tells that there is a run.
    go(tmp_path / "n", callbacks=[begin_too], config=replace(RECIPE, steps=3, evaluate_every=4))
    assert ".lock" not in {path.name for path in (tmp_path / "n").iterdir()}


def test_files_of_a_killed_process_are_removed(cut):
    for name in (".model.safetensors.77.tmp", ".run.json.77.tmp", ".notes.77.tmp"):
        (cut / name).write_text("half")
    (cut / ".togetherabc").mkdir()
    resume(cut)
    assert {path.name for path in cut.iterdir() if path.name[0] == "."} == {".notes.77.tmp"}


def test_a_folder_that_is_not_a_run_is_left_alone(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(
        CheckpointError,
        match="run is not a training run's folder, and a training run needs that name",
    ):
        go(tmp_path)
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"


def test_the_files_of_a_run_have_the_permissions_of_new_files(tmp_path):
    folder = tmp_path / "run"
    before = os.umask(0o022)
    try:
        go(folder, config=replace(RECIPE, steps=2, record_every=2))
    finally:
        os.umask(before)
    modes = {S_IMODE(file.stat().st_mode) for file in folder.rglob("*") if file.is_file()}
    assert modes == {0o644}
