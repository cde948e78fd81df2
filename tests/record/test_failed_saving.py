"""Saving that fails leaves what was saved before."""

from pathlib import Path

import pytest
import safetensors.torch
from support.saved_recordings import equal, saved, sdpa, tensors_of

import regard
from regard.record import RecordError, _files


@pytest.mark.parametrize("where", ["write", "rename", "rename of the index"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_saving_that_fails_leaves_the_old_recording(tmp_path, monkeypatch, where, error):
    old = saved(tmp_path)
    with regard.record() as new:
        sdpa(is_causal=True)
    rename = Path.replace

    def fail(*args, **kwargs):
        raise error

    def fail_for_index(path, target):
        if Path(target).name == "recording.json":
            raise error
        return rename(path, target)

    if where == "write":
        monkeypatch.setattr(safetensors.torch, "save_file", fail)
    else:
        monkeypatch.setattr(Path, "replace", fail if where == "rename" else fail_for_index)
    with pytest.raises(type(error)):
        new.save(tmp_path, overwrite=True)
    monkeypatch.undo()
    assert set(tmp_path.iterdir()) == {tmp_path / "recording.json", tensors_of(tmp_path)}
    equal(old, regard.load(tmp_path))


def test_the_first_saving_that_fails_can_be_repeated(tmp_path, monkeypatch):
    with regard.record() as recording:
        sdpa()

    def fail(*args, **kwargs):
        raise OSError("disk full")

    for name in ("write", "index"):
        folder = tmp_path / name
        if name == "write":
            monkeypatch.setattr(safetensors.torch, "save_file", fail)
        else:
            monkeypatch.setattr(_files, "replace_file", fail)
        with pytest.raises(OSError, match="disk full"):
            recording.save(folder)
        monkeypatch.undo()
        with pytest.raises(RecordError, match="holds no recording"):
            regard.load(folder)
        recording.save(folder)
        equal(recording, regard.load(folder))
