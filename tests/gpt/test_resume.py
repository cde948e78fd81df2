"""A run that is cut off anywhere goes on as if nothing had happened, to the last bit."""

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
from stat import S_IMODE

import pytest
import torch
from rich.console import Console

from regard.gpt import (
    CharTokenizer,
    CheckpointError,
    GPTConfig,
    TrainConfig,
    _tensors,
    history,
    load,
    load_training,
    prepare,
    recipe_of,
    train,
)
from regard.gpt.errors import SaveError
from regard.gpt.training.metrics import read_metrics

TEXT = "the quick brown fox jumps over the lazy dog and does it all again.\n" * 20
# Dropout, accumulation, growing windows, random runs: everything that could depend on the past.
TINY = GPTConfig(context=8, layers=1, heads=2, dim=8, dropout=0.1)
RECIPE = TrainConfig(
    tokenizer="char", steps=9, warmup=2, batch=2, accumulate=2, evaluate_every=2, record_every=3
)
QUIET = Console(quiet=True)


def go(folder, *, texts=(TEXT,), gpt=TINY, config=RECIPE, console=QUIET, **options):
    return train(folder, texts=texts, gpt=gpt, config=config, console=console, **options)


def resume(folder, *, texts=None, gpt=None, config=None, **options):
    return go(folder, texts=texts, gpt=gpt, config=config, resume=True, **options)


def losses(folder, run="run"):
    timed = {"seconds", "tokens_per_second", "seconds_left", "memory", "share_of_peak"}
    return [
        {name: value for name, value in line.items() if name not in timed}
        for line in read_metrics(folder / run / "metrics.jsonl")
    ]


def weights(folder):
    return load(folder)[0].state_dict()


def same(one, other):
    return one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)


def same_history(one, other):
    one, other = history(one), history(other)
    return (
        (one.steps, one.tokens, one.roles) == (other.steps, other.tokens, other.roles)
        and one.images.equal(other.images)
        and one.scores.nan_to_num(-1).equal(other.scores.nan_to_num(-1))
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole") / "m"
    go(folder)
    assert [line["step"] for line in losses(folder)] == list(range(1, 10))
    return folder


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """A run that Ctrl-C ended after five updates."""
    folder = tmp_path_factory.mktemp("half") / "m"
    interrupt(folder, 5)
    return folder


def interrupt(folder, step, **options):
    def stop(report):
        if report.step == step:
            raise KeyboardInterrupt

    assert go(folder, callbacks=[stop], **options).interrupted


@pytest.fixture
def cut(half, tmp_path):
    shutil.copytree(half, tmp_path / "m")
    return tmp_path / "m"


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


def test_the_text_may_be_given_again_and_has_to_be_the_same(whole, cut):
    with pytest.raises(CheckpointError, match="the text is not the one that the run in"):
        resume(cut, texts=[TEXT, "more"])
    resume(cut, texts=[TEXT], gpt=TINY, config=RECIPE)
    assert losses(cut) == losses(whole)


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


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is POSIX's")
def test_kill_at_any_moment_loses_what_came_after_the_checkpoint_and_nothing_else(tmp_path):
    config = replace(RECIPE, steps=40, evaluate_every=4, record_every=0)
    go(tmp_path / "whole", config=config)
    folder = tmp_path / "killed"
    lines = folder / "run" / "metrics.jsonl"
    for lives, least in enumerate((9, 22)):
        told = json.dumps([str(folder), lives > 0, vars(TINY), vars(config), TEXT])
        with subprocess.Popen([sys.executable, "-c", PROGRAM, told]) as process:
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

    def arm(self, report):
        self.armed = report.step >= 8

    def call(self, *arguments):
        self.calls += self.armed
        if self.calls == self.moment + 1 and self.armed:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.original(*arguments)


@pytest.mark.parametrize("name", ["fsync", "rename", "replace", "link"])
def test_a_disk_that_fails_at_any_point_of_saving_leaves_a_run_to_go_on_with(
    whole, half, tmp_path, monkeypatch, name
):
    """Each call of a kind fails in turn, while the checkpoint of update 9 is written."""
    owner = os if name in {"fsync", "link"} else Path
    original = getattr(owner, name)
    for moment in count():
        folder = tmp_path / f"{name}{moment}"
        shutil.copytree(half, folder)
        fails = Fails(original, moment)
        monkeypatch.setattr(owner, name, lambda *given, fails=fails: fails.call(*given))
        try:
            resume(folder, callbacks=[fails.arm])
        except SaveError as error:
            told = str(error)
        else:
            break
        finally:
            monkeypatch.setattr(owner, name, original)
        assert "No space left on device" in told
        assert "free some space and resume" in told
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


def test_a_write_that_the_system_refuses_leaves_a_run_to_go_on_with(whole, cut):
    """A real one, in every library that writes: files may not grow beyond so many bytes."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(report):
        if report.step == 8:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))

    try:
        with pytest.raises(SaveError, match="File too large") as told:
            resume(cut, callbacks=[limit])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert Path(told.value.filename).name == "model.safetensors"
    assert "the checkpoint of update 8 is whole; resume from it" in str(told.value)
    load(cut)
    resume(cut)
    assert losses(cut) == losses(whole)
    assert not list(cut.rglob(".*"))


def test_one_process_at_a_time_trains_in_a_folder(whole, cut, tmp_path):
    refused = []

    def begin(report):
        for options in ({"overwrite": True}, {"resume": True, "gpt": None, "config": None}):
            with pytest.raises(CheckpointError, match=r"another process trains in .*; wait until"):
                go(cut, **options)
            refused.append(report.step)

    resume(cut, callbacks=[begin])
    assert refused == [6, 6, 7, 7, 8, 8, 9, 9]
    assert losses(cut) == losses(whole)

    def begin_too(report):
        if report.step < 3:
            with pytest.raises(CheckpointError, match="another process trains in"):
                go(tmp_path / "n")

    # Before its first checkpoint nothing else tells that there is a run.
    go(tmp_path / "n", callbacks=[begin_too], config=replace(RECIPE, steps=3, evaluate_every=4))
    assert ".lock" not in {path.name for path in (tmp_path / "n").iterdir()}


def test_what_a_killed_process_left_is_cleared_away(cut):
    for name in (".model.safetensors.77.tmp", ".run.json.77.tmp", ".notes.77.tmp"):
        (cut / name).write_text("half")
    (cut / ".togetherabc").mkdir()
    resume(cut)
    assert {path.name for path in cut.iterdir() if path.name[0] == "."} == {".notes.77.tmp"}


def test_what_a_loss_of_power_made_of_the_metrics_keeps_no_run_from_going_on(whole, cut):
    path = cut / "run" / "metrics.jsonl"
    third, *rest = path.read_bytes().splitlines(keepends=True)[2:]
    path.write_bytes(b"\xff\n{]\n[1]\n{}\n" + third + b"".join(rest) + b"\0" * 99)
    console = Console(file=io.StringIO(), width=80)
    resume(cut, console=console)
    assert f"{path}: of 5 lines, 2 are damaged or missing" in console.file.getvalue()
    assert losses(cut) == losses(whole)[2:]


def test_whole_metrics_are_not_called_damaged(cut):
    console = Console(file=io.StringIO(), width=80)
    resume(cut, console=console)
    assert "going on after update 5" in console.file.getvalue()
    assert "damaged" not in console.file.getvalue()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gpt": replace(TINY, layers=2)}, r"GPTConfig\.layers is 2 and the run .* has 1; resume"),
        ({"config": replace(RECIPE, batch=3)}, r"TrainConfig\.batch is 3 and the run .* has 2"),
        ({"config": replace(RECIPE, steps=12)}, r"steps is 12 and .* 9: by schedule='cosine'"),
        ({"config": replace(RECIPE, steps=4)}, r"steps is 4 and .* has 9, of which 5 are made"),
    ],
)
def test_another_recipe_is_told_by_field_and_values(cut, change, message):
    with pytest.raises(CheckpointError, match=message):
        resume(cut, **change)
    assert recipe_of(cut) == (replace(TINY, vocab_size=len(set(TEXT))), RECIPE)


def test_what_changes_no_number_may_change(whole, cut):
    resume(cut, config=replace(RECIPE, evaluate_every=1, keep_every=3))
    assert [line["loss"] for line in losses(cut)] == [line["loss"] for line in losses(whole)]
    kept = sorted(path.name for path in (cut / "run" / "checkpoints").iterdir())
    assert kept == ["00000006", "00000009"]
    load(cut / "run" / "checkpoints" / "00000006")


def test_a_run_whose_rate_has_not_begun_to_fall_can_be_made_longer(tmp_path):
    config = replace(RECIPE, schedule="wsd", decay=0.3, ramp=0.0, record_every=0)
    longer = replace(config, steps=14)
    go(tmp_path / "long", config=longer)
    interrupt(tmp_path / "m", 6, config=config)
    resume(tmp_path / "m", config=longer)
    assert [line["loss"] for line in losses(tmp_path / "m")] == [
        line["loss"] for line in losses(tmp_path / "long")
    ]
    interrupt(tmp_path / "n", 8, config=config)
    with pytest.raises(CheckpointError, match="the learning rate of update 7, which was made"):
        resume(tmp_path / "n", config=longer)
    interrupt(tmp_path / "o", 4, config=replace(config, ramp=0.5))
    with pytest.raises(CheckpointError, match=r"by ramp=0\.5 the windows of update 4"):
        resume(tmp_path / "o", config=replace(config, ramp=0.5, steps=20))


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


OTHER = {
    "vocab_size": 99, "context": 9, "layers": 2, "heads": 1, "dim": 16, "dropout": 0.2,
    "bias": False, "positions": "rotary", "rotary_base": 10_010.0, "groups": 1, "qk_norm": True,
    "window": 3, "norm": "rms", "norm_eps": 1e-4, "mlp": "swiglu", "hidden": 16,
}  # fmt: skip


@pytest.mark.parametrize("knows", [True, False], ids=["with its checksum", "without"])
@pytest.mark.parametrize("field", OTHER)
def test_a_run_does_not_go_on_as_another_model(cut, field, knows):
    folder = cut / "run" / "checkpoints" / "00000005"
    if not knows:  # as earlier versions wrote it
        _tensors.write(folder / "new", _tensors.read(folder / "model.safetensors"))
        (folder / "new").replace(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").unlink()  # which has another name too
    (folder / "config.json").write_text(json.dumps({**config, field: OTHER[field]}))
    before = losses(cut)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        resume(cut)
    assert losses(cut) == before
    (folder / "config.json").write_text(json.dumps(config))
    resume(cut)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"holds no checkpoint to resume from: it has no run\.json"),
        ("{", r"run\.json is damaged"),
        ('{"format": "regard run", "version": 2}', r"version 2, and this regard reads"),
        (
            '{"format": "regard run", "version": 1, "run": "../..", "step": 5}',
            r"run\.json is damaged: it names no checkpoint",
        ),
        (
            '{"format": "regard run", "version": 1, "run": ["run"], "step": 5}',
            r"run\.json is damaged: it names no checkpoint",
        ),
        (
            '{"format": "regard run", "version": 1, "run": "run", "step": 1' + "0" * 300 + "}",
            r"run\.json is damaged: it names no checkpoint",
        ),
        (
            '{"format": "regard run", "version": 1, "run": "run", "step": 6}',
            r"names the checkpoint .*00000006, which is not there",
        ),
    ],
)
def test_a_folder_without_a_checkpoint_is_told(cut, content, message):
    if content is None:
        (cut / "run.json").unlink()
    else:
        (cut / "run.json").write_text(content)
    with pytest.raises(CheckpointError, match=message):
        resume(cut)


def test_a_prepared_corpus_stays_where_it_is_and_what_it_was(tmp_path):
    prepare(tmp_path / "c", [TEXT], tokenizer="char", validation=0.2, console=QUIET)
    prepare(tmp_path / "other", [TEXT[::-1]], tokenizer="char", console=QUIET)
    letters = CharTokenizer(TEXT + "X")
    prepare(tmp_path / "letters", [TEXT], tokenizer=letters, console=QUIET)
    config = replace(RECIPE, record_every=0)
    options = {"texts": None, "corpus": tmp_path / "c", "config": config}
    go(tmp_path / "whole", **options)
    interrupt(tmp_path / "m", 5, **options)
    assert not (tmp_path / "m" / "run" / "corpus").exists()
    assert recipe_of(tmp_path / "m")[1].validation == 0.2
    with pytest.raises(CheckpointError, match="other is not the corpus that the run in"):
        resume(tmp_path / "m", corpus=tmp_path / "other")
    with pytest.raises(CheckpointError, match="letters was made with another tokenizer than the"):
        resume(tmp_path / "m", corpus=tmp_path / "letters")
    resume(tmp_path / "m")
    assert losses(tmp_path / "m") == losses(tmp_path / "whole")
    with pytest.raises(ValueError, match=r"validation is 0\.3 and the corpus .* with 0\.2"):
        go(tmp_path / "n", **options | {"config": replace(config, validation=0.3)})
    with pytest.raises(ValueError, match="texts and corpus are both given"):
        go(tmp_path / "n", corpus=tmp_path / "c")
    with pytest.raises(ValueError, match="resume and overwrite are both given"):
        resume(tmp_path / "m", overwrite=True)
    assert not (tmp_path / "n").exists()


def test_a_folder_of_somebody_else_is_not_touched(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="run is no run's folder, and a run needs that name"):
        go(tmp_path)
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"


def test_no_link_is_needed(whole, tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    go(tmp_path / "m")
    assert same(weights(tmp_path / "m"), weights(whole))


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


def test_whoever_may_read_new_files_may_read_the_model(tmp_path):
    folder = tmp_path / "run"
    before = os.umask(0o022)
    try:
        go(folder)
    finally:
        os.umask(before)
    modes = {S_IMODE(file.stat().st_mode) for file in folder.rglob("*") if file.is_file()}
    assert modes == {0o644}
