"""Damaged recordings, and those of other formats, are refused."""

import json
import math

import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from support.saved_recordings import (
    RUNS,
    B,
    D,
    H,
    L,
    S,
    damage,
    nothing,
    saved,
    sdpa,
    tensors_of,
    write_index,
)

import regard
from regard.record import RecordError, _files


def test_a_folder_without_a_recording(tmp_path):
    with pytest.raises(RecordError, match=r"holds no recording: recording\.json is not there"):
        regard.load(tmp_path)
    with pytest.raises(RecordError, match="holds no recording"):
        regard.load(tmp_path / "nowhere")
    saved(tmp_path)
    tensors_of(tmp_path).unlink()
    with pytest.raises(RecordError, match="holds no recording"):
        regard.load(tmp_path)


@pytest.mark.parametrize("name", ["recording.json", "tensors"])
@pytest.mark.parametrize("damage", ["empty", "half", "noise", "folder"])
def test_damaged_files(tmp_path, name, damage):
    saved(tmp_path)
    path = tmp_path / name if name.endswith("json") else tensors_of(tmp_path)
    data = path.read_bytes()
    if damage == "folder":
        path.unlink()
        path.mkdir()
        with pytest.raises((RecordError, OSError)):
            regard.load(tmp_path)
        return
    path.write_bytes({"empty": b"", "half": data[: len(data) // 2], "noise": b"\xff" * 99}[damage])
    with pytest.raises(RecordError):
        regard.load(tmp_path)


FLIPS = 211
"""Bytes of each file that are changed, one at a time: those of numbers among them."""


@pytest.mark.parametrize("name", ["recording.json", "tensors"])
def test_a_bit_that_is_flipped_is_noticed(tmp_path, name):
    saved(tmp_path, RUNS["everything"])
    path = tmp_path / name if name.endswith("json") else tensors_of(tmp_path)
    data = path.read_bytes()
    for place in range(0, len(data), max(1, len(data) // FLIPS)):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        with pytest.raises(RecordError):
            regard.load(tmp_path)
    path.write_bytes(data)
    regard.load(tmp_path)


def test_an_error_names_the_damaged_file_and_the_cure(tmp_path):
    recording = saved(tmp_path)
    path = tensors_of(tmp_path)
    tensors = safetensors.torch.load_file(path)
    tensors["0"][0, 0, 0, 0] += 1
    safetensors.torch.save_file(tensors, path, metadata=safe_open(path, "pt").metadata())
    with pytest.raises(RecordError, match=f"{path.name} is damaged: its checksum.*save again"):
        regard.load(tmp_path)
    recording.save(tmp_path, overwrite=True)
    index = (tmp_path / "recording.json").read_text()
    (tmp_path / "recording.json").write_text(index.replace('"index": 0', '"index": 1'))
    with pytest.raises(RecordError, match=r"recording\.json is damaged: its checksum.*save again"):
        regard.load(tmp_path)


def test_halves_of_two_recordings(tmp_path):
    saved(tmp_path / "one")
    saved(tmp_path / "two")
    data = tensors_of(tmp_path / "two").read_bytes()
    tensors_of(tmp_path / "one").write_bytes(data)
    index = json.loads((tmp_path / "one" / "recording.json").read_text())
    index["tensors"] = _files._checksum(tensors_of(tmp_path / "one"))
    write_index(tmp_path / "one", index)
    with pytest.raises(RecordError, match="belongs to another recording"):
        regard.load(tmp_path / "one")


@pytest.mark.parametrize(("key", "value"), [("version", 4), ("version", "2"), ("format", "regard")])
def test_other_formats(tmp_path, key, value):
    saved(tmp_path)
    index = json.loads((tmp_path / "recording.json").read_text())
    write_index(tmp_path, index | {key: value})
    with pytest.raises(RecordError, match="reads 'regard recording', versions 1 to 3"):
        regard.load(tmp_path)


def forget(index, entry):
    """Log-sum-exps that are those of other bounds."""
    entry["logsumexp"] = None


ENTRIES = {
    "no layers": lambda index, entry: index.pop("layers"),
    "layers a number": lambda index, entry: index.update(layers=3),
    "a layer a number": lambda index, entry: index.update(layers=[3]),
    "no query": lambda index, entry: entry.pop("query"),
    "query null": lambda index, entry: entry.update(query=None),
    "query unknown": lambda index, entry: entry.update(query="99"),
    "query a number": lambda index, entry: entry.update(query=0),
    "kind": lambda index, entry: entry.update(kind="other"),
    "index": lambda index, entry: entry.update(index="0"),
    "heads": lambda index, entry: entry.update(heads=[0.5]),
    "too many heads": lambda index, entry: entry.update(heads=[0, 1, 2, 3]),
    "too few rows": lambda index, entry: entry.update(rows=[0]),
    "rows": lambda index, entry: entry.update(rows=None),
    "huge rows": lambda index, entry: entry.update(rows=2**60),
    "leading": lambda index, entry: entry.update(leading=[7, 3]),
    "negative leading": lambda index, entry: entry.update(leading=[-2, 3]),
    "leading null": lambda index, entry: entry.update(leading=None),
    "scale": lambda index, entry: entry.update(scale="0.5"),
    "scale infinite": lambda index, entry: entry.update(scale=math.inf),
    "scale NaN": lambda index, entry: entry.update(scale=math.nan),
    "softcap": lambda index, entry: entry.update(softcap=-1.0),
    "neither line nor table": lambda index, entry: (entry.pop("line", 0), entry.pop("table", 0)),
    "line": lambda index, entry: entry.update(line={"position": 0.5, "first": None, "behind": 1}),
    "line of less": lambda index, entry: entry.update(line={"position": 0}),
    "huge line": lambda index, entry: entry.update(
        line={"position": 2**62, "first": 2**62, "behind": None}
    ),
    "tokens": lambda index, entry: index.update(tokens=3),
    "mark": lambda index, entry: index.update(mark=None),
    "list": lambda index, entry: index.update(layers=[entry, None]),
    "alibi": lambda index, entry: entry.update(alibi=entry["key"]),
    "sink": lambda index, entry: entry.update(sink=entry["key"]),
    "bias": lambda index, entry: entry.update(bias=entry["query"]),
    "allowed": lambda index, entry: entry.update(allowed=entry["query"]),
    "logsumexp": lambda index, entry: entry.update(logsumexp=entry["key"]),
    "spans": lambda index, entry: entry.update(spans=3),
    "spans of other rows": lambda index, entry: entry.update(
        spans=[entry["key"], entry["key"], [None, None]]
    ),
    "spans without numbers": lambda index, entry: entry.update(
        spans=[entry["query"], entry["query"], []]
    ),
}


@pytest.mark.parametrize("change", ENTRIES)
def test_damaged_entries(tmp_path, change):
    saved(tmp_path)
    damage(tmp_path, ENTRIES[change])
    with pytest.raises(RecordError):
        regard.load(tmp_path)


def test_json_that_is_no_object(tmp_path):
    saved(tmp_path)
    for text in ("[]", "null", "3", '"text"'):
        (tmp_path / "recording.json").write_text(text)
        with pytest.raises(RecordError, match="damaged"):
            regard.load(tmp_path)


TENSORS = {
    "query of integers": ("query", lambda t: t.long()),
    "query of another dtype": ("query", lambda t: t.double()),
    "query of another width": ("query", lambda t: t[..., :2]),
    "query of fewer axes": ("query", lambda t: t[0, 0]),
    "query of none": ("query", lambda t: t[0, 0, 0, 0]),
    "query of more rows": ("query", lambda t: torch.cat([t, t], -2)),
    "query of bits": ("query", lambda t: t > 0),
    "key of another batch": ("key", lambda t: t[:1].expand(5, -1, -1, -1)),
    "key of other heads": ("key", lambda t: t[:, :2]),
    "key of one axis": ("key", lambda t: t.flatten()),
    "table of floats": ("table 1", lambda t: t.double()),
    "table of fewer rows": ("table 1", lambda t: t[..., :-1]),
    "table of other heads": ("table 2", lambda t: t.expand(1, 7, -1)),
    "table of one axis": ("table 0", lambda t: t.flatten()),
    "table of numbers": ("table 0", lambda t: t.sum()),
}


@pytest.mark.parametrize("case", TENSORS)
def test_tensors_that_do_not_fit(tmp_path, case):
    saved(tmp_path, RUNS["hidden rows"])
    role, new = TENSORS[case]
    damage(tmp_path, nothing, {role: new})
    with pytest.raises(RecordError):
        regard.load(tmp_path)


@pytest.mark.parametrize("role", ["logsumexp", "alibi", "sink", "allowed", "bias"])
@pytest.mark.parametrize("new", [torch.zeros(3), torch.zeros(2, 3, 11, 13), torch.zeros(99).long()])
def test_other_tensors_that_do_not_fit(tmp_path, role, new):
    recording = saved(tmp_path / "old", RUNS["everything"])
    recording[0].entropy()
    recording.save(tmp_path / "new")
    damage(tmp_path / "new", nothing, {role: lambda _: new})
    with pytest.raises(RecordError):
        regard.load(tmp_path / "new")


READOUTS = (
    regard.readouts.Entropy(),
    regard.readouts.TopK(2),
    regard.readouts.Received(),
    regard.readouts.Distance(),
)
READOUTS += (regard.readouts.Offsets(3), regard.readouts.Image(2, 3))


@pytest.mark.parametrize("number", [2**40, 2**62, -(2**40), -(2**63), 2**63 - 1, S + 1, -1])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_bounds_outside_the_keys_are_cut(tmp_path, number, place, dtype):
    """A kernel that believed such a table would read outside the keys."""
    if dtype == torch.int32:
        number = max(-(2**31), min(number, 2**31 - 1))
    recording = saved(tmp_path, RUNS["hidden rows"])
    rows = recording[0].problem.rows
    start, stop = rows.start.clone(), rows.stop.clone()

    def one(t):
        t = t.clone()
        t[..., 2] = number
        return t.to(dtype)

    damage(tmp_path, forget, {f"table {place}": one})
    pattern = regard.load(tmp_path)[0]
    if place == 1:
        start = one(start).long()
    if place == 2:
        stop = one(stop).long()
    key = torch.arange(S)
    visible = (key >= start[..., None]) & (key < stop[..., None])
    problem = pattern.problem
    scores = problem.query @ problem.key.mT * problem.scale
    weights = torch.softmax(scores.masked_fill(~visible, -math.inf), -1).nan_to_num(0)
    torch.testing.assert_close(pattern.dense(), weights, rtol=0, atol=1e-6)
    pattern.read(*READOUTS)


@pytest.mark.parametrize("number", [2**48, -(2**48), S + 1, -1])
@pytest.mark.parametrize("name", ["position", "first", "behind"])
def test_lines_outside_the_keys(tmp_path, number, name):
    saved(tmp_path, lambda: sdpa(key=torch.randn(B, H, L, D), is_causal=True))
    damage(tmp_path, forget)
    damage(tmp_path, lambda index, entry: entry["line"].update({name: number}))
    pattern = regard.load(tmp_path)[0]
    weights = pattern.dense()
    assert bool(weights.isfinite().all())
    assert bool(((weights.sum(-1) - 1).abs() < 1e-5).logical_or(weights.sum(-1) == 0).all())
    pattern.read(*READOUTS)


def test_a_wrong_logsumexp_is_no_crash(tmp_path):
    recording = saved(tmp_path / "old", RUNS["causal"])
    recording[0].entropy()
    recording.save(tmp_path / "new")
    damage(tmp_path / "new", nothing, {"logsumexp": lambda t: torch.full_like(t, math.nan)})
    regard.load(tmp_path / "new")[0].dense()
