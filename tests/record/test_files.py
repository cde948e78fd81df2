"""A saved recording comes back as it was."""

import json
import pickletools
import zipfile
from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from support.saved_recordings import RUNS, B, D, H, L, damage, equal, saved, sdpa, tensors_of

import regard
from regard.record import RecordError

KEPT = [{}, {"rows": [1, -1]}, {"heads": [2, 0]}]


@pytest.mark.each_once
@pytest.mark.parametrize("kept", KEPT, ids=str)
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("read", [False, True])
def test_a_saved_recording_loads_the_same(tmp_path, run, kept, read):
    if "heads" in kept and run == "no leading":
        kept = {"heads": [0]}
    with regard.record(**kept) as recording:
        RUNS[run]()
    if read:
        recording.read(regard.readouts.Received())  # finds the log-sum-exps
    recording.save(tmp_path)
    equal(recording, regard.load(tmp_path))


@pytest.mark.parametrize(("run", "version"), [("documents", 2), ("spans", 3)])
def test_only_files_with_spans_are_too_new_for_what_reads_no_spans(tmp_path, run, version):
    saved(tmp_path, RUNS[run])
    index = json.loads((tmp_path / "recording.json").read_text())
    assert index["version"] == version
    assert [("spans" in layer) for layer in index["layers"]] == [run == "spans"]


def test_a_generation_with_tokens_loads_the_same(tmp_path):
    query, key = torch.randn(2, B, H, L, D)
    layer = torch.nn.Module()
    layer.forward = sdpa
    with regard.record(tokens=[list("äb\n“é"), list("fghij")], rows=[0, 4]) as recording:
        layer(query[..., :3, :], key[..., :3, :], is_causal=True)
        for t in (3, 4):
            layer(query[..., t : t + 1, :], key[..., : t + 1, :])
    recording.save(str(tmp_path / "a" / "b"))
    loaded = regard.load(str(tmp_path / "a" / "b"))
    equal(recording, loaded)
    assert loaded.tokens[0] == ("ä", "b", "\n", "“", "é")


def test_a_file_with_mean_contexts_opens_without_them(tmp_path):
    """Earlier versions could save them."""
    recording = saved(tmp_path)
    damage(tmp_path, lambda index, entry: entry.update(mean_context=entry["key"]))
    equal(recording, regard.load(tmp_path))


def test_several_layers_and_what_they_share(tmp_path):
    model = torch.nn.Transformer(12, 4, 2, 2, 16, 0.0, batch_first=True)
    bias = torch.randn(L, L)
    with regard.record(model) as recording:
        model(torch.randn(B, L, 12), torch.randn(B, L, 12), src_mask=bias)
    recording.save(tmp_path)
    loaded = regard.load(tmp_path)
    equal(recording, loaded)
    assert loaded.kinds == ("self", "cross", "encoder")
    tensors = safetensors.torch.load_file(tensors_of(tmp_path))
    assert sum(t.shape[-2:] == (L, L) and t.numel() == L * L for t in tensors.values()) == 1
    for use in (
        lambda: regard.lens.heads(loaded),
        lambda: regard.lens.rollout(loaded, query=0),
        lambda: loaded.read(regard.readouts.Max()),
    ):
        use()


def test_a_loaded_recording_can_be_saved(tmp_path):
    saved(tmp_path / "one", RUNS["everything"])
    loaded = regard.load(tmp_path / "one")
    loaded.save(tmp_path / "two")
    equal(loaded, regard.load(tmp_path / "two"))


def test_overwriting(tmp_path):
    saved(tmp_path)
    with regard.record() as other:
        sdpa(is_causal=True)
    with pytest.raises(FileExistsError, match="holds a recording; pass overwrite=True"):
        other.save(tmp_path)
    other.save(tmp_path, overwrite=True)
    equal(other, regard.load(tmp_path))
    assert set(tmp_path.iterdir()) == {tmp_path / "recording.json", tensors_of(tmp_path)}
    regard.load(tmp_path).save(tmp_path, overwrite=True)
    equal(other, regard.load(tmp_path))


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_something_else_is_left_alone(tmp_path, overwrite):
    (tmp_path / "notes.txt").write_text("mine")
    with regard.record() as recording:
        sdpa()
    for folder in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(FileExistsError, match="holds something else"):
            recording.save(folder, overwrite=overwrite)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_freed_recording_is_not_saved(tmp_path):
    with regard.record() as recording:
        sdpa()
    recording.free()
    with pytest.raises(RecordError, match="was freed"):
        recording.save(tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("run", ["causal", "everything", "no leading", "no rows", "float64"])
def test_log_sum_exps_are_saved_whether_known_or_not(tmp_path, run):
    recording = saved(tmp_path / "unknown", RUNS[run])
    logsumexp = recording[0].logsumexp
    recording.save(tmp_path / "known")
    for name in ("unknown", "known"):
        pattern = regard.load(tmp_path / name)[0]
        kept = pattern._logsumexp
        assert kept is not None
        assert kept.dtype == logsumexp.dtype
        assert torch.equal(kept.reshape(logsumexp.shape), logsumexp)


def test_nothing_in_the_files_can_be_executed(tmp_path):
    saved(tmp_path, RUNS["everything"], tokens=None)
    for path in tmp_path.iterdir():
        assert not zipfile.is_zipfile(path)
        with pytest.raises(ValueError, match=r".*"):
            list(pickletools.genops(path.read_bytes()))
    source = Path(regard.__file__).parent / "record"
    text = "".join(path.read_text() for path in source.glob("*.py"))
    assert "pickle" not in text
    assert "torch.load" not in text
    assert "torch.save" not in text.replace("safetensors.torch.save_file", "")


def former(folder):
    """Make a saved recording one of the former version, which had no checksums."""
    index = json.loads((folder / "recording.json").read_text())
    for name in ("sha256", "tensors"):
        del index[name]
    for entry in index["layers"]:
        entry["logsumexp"] = None
    (folder / "recording.json").write_text(json.dumps(index | {"version": 1}) + "\n")


@pytest.mark.each_once
@pytest.mark.parametrize("run", RUNS)
def test_a_recording_of_the_former_version_is_read(tmp_path, run):
    recording = saved(tmp_path, RUNS[run])
    former(tmp_path)
    equal(recording, regard.load(tmp_path))
    regard.load(tmp_path).save(tmp_path, overwrite=True)
    version = json.loads((tmp_path / "recording.json").read_text())["version"]
    assert version == (3 if run == "spans" else 2)
    equal(recording, regard.load(tmp_path))


def test_the_files_name_their_format(tmp_path):
    saved(tmp_path)
    index = json.loads((tmp_path / "recording.json").read_text())
    assert (index["format"], index["version"]) == ("regard recording", 2)
    with safe_open(tensors_of(tmp_path), framework="pt") as file:
        assert file.metadata() == {"mark": index["mark"]}
