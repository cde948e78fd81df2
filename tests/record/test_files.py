"""Recordings in folders: what comes back, and what is refused."""

import json
import math
import pickletools
import zipfile
from pathlib import Path

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from safetensors import safe_open

import regard
from regard.record import RecordError, _files

B, H, L, S, D = 2, 3, 5, 7, 4


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def sdpa(query=None, key=None, **options):
    query = torch.randn(B, H, L, D) if query is None else query
    key = torch.randn(B, H, S, D) if key is None else key
    F.scaled_dot_product_attention(query, key, key, **options)


def own(**options):
    regard.attention(torch.randn(B, 6, L, D), *torch.randn(2, B, 3, S, D), **options)


PADDING = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]])
GAPS = torch.rand(B, 6, L, S, generator=torch.Generator().manual_seed(3)) < 0.6
BIAS = torch.randn(6, L, S, generator=torch.Generator().manual_seed(4))
RUNS = {
    "plain": sdpa,
    "causal": lambda: sdpa(is_causal=True),
    "scale": lambda: sdpa(scale=0.3),
    "padding": lambda: sdpa(attn_mask=PADDING.bool()[:, None, None]),
    "written out": lambda: sdpa(attn_mask=torch.ones(L, S).tril().bool()),
    "hidden rows": lambda: sdpa(attn_mask=torch.ones(L, S).tril(-1).bool()),
    "gaps": lambda: sdpa(attn_mask=GAPS[:, :3]),
    "bias": lambda: sdpa(attn_mask=BIAS[:3]),
    "bias that hides": lambda: sdpa(attn_mask=BIAS[:3].masked_fill(~GAPS[:, :3], -math.inf)),
    "one for all": lambda: sdpa(attn_mask=BIAS[0, :1]),
    "bfloat16": lambda: sdpa(*(torch.randn(B, H, L, D).bfloat16() for _ in range(2))),
    "float16": lambda: sdpa(*(torch.randn(B, H, L, D).half() for _ in range(2))),
    "float64": lambda: sdpa(*(torch.randn(B, H, L, D).double() for _ in range(2))),
    "bfloat16 bias": lambda: sdpa(
        *(torch.randn(B, H, n, D).bfloat16() for n in (L, S)), attn_mask=BIAS[:3].bfloat16()
    ),
    "groups": lambda: sdpa(torch.randn(B, 6, L, D), enable_gqa=True),
    "no leading": lambda: sdpa(torch.randn(L, D), torch.randn(S, D)),
    "heads alone": lambda: sdpa(torch.randn(H, L, D), torch.randn(H, S, D), is_causal=True),
    "five axes": lambda: sdpa(torch.randn(2, B, H, L, D), torch.randn(2, B, H, S, D)),
    "five axes with gaps": lambda: sdpa(
        torch.randn(2, B, H, L, D), torch.randn(2, B, H, S, D), attn_mask=GAPS[:, :3]
    ),
    "no rows": lambda: sdpa(torch.randn(B, H, 0, D)),
    "own": own,
    "window": lambda: own(mask=regard.causal() & regard.window(2)),
    "documents": lambda: own(mask=regard.documents(torch.tensor([0, 0, 0, 1, 1, 2, 2]))),
    "offsets": lambda: own(mask=regard.causal(offset=torch.tensor([1, 3]))),
    "prefix": lambda: own(mask=regard.prefix(torch.tensor([1, 3])) & regard.padding(PADDING)),
    "alibi": lambda: own(alibi=0.5 ** torch.arange(1, 7), mask=regard.causal()),
    "sink": lambda: own(sink=torch.randn(6)),
    "softcap": lambda: own(softcap=2.0),
    "everything": lambda: own(
        mask=regard.causal() & regard.padding(PADDING) & regard.dense(GAPS),
        bias=BIAS,
        alibi=0.5 ** torch.arange(1, 7),
        sink=torch.randn(6),
        softcap=2.5,
        scale=0.7,
    ),
}
KEPT = [{}, {"rows": [1, -1]}, {"heads": [2, 0]}]


def tensors_of(folder):
    """The file of a recording that holds its tensors; each saving names it anew."""
    (path,) = folder.glob("recording-*.safetensors")
    return path


def equal(one, other):
    assert [(a.name, a.kind, a.index, list(a.heads), list(a.rows)) for a in one.layers] == [
        (a.name, a.kind, a.index, list(a.heads), list(a.rows)) for a in other.layers
    ]
    assert (one.tokens, one.source_tokens) == (other.tokens, other.source_tokens)
    for first, second in zip(one.patterns(), other.patterns(), strict=True):
        assert first.shape == second.shape
        assert first.dtype == second.dtype
        assert torch.equal(first.dense(), second.dense())
        assert torch.equal(first.logsumexp, second.logsumexp)
        (problem, _), (again, _) = first.parts(), second.parts()
        assert torch.equal(problem.query, again.query)
        assert torch.equal(problem.key, again.key)
        assert (problem.scale, problem.softcap) == (again.scale, again.softcap)
        assert torch.equal(
            problem.rows.spread(problem.rows.positions), again.rows.spread(again.rows.positions)
        )
        if first.shape.numel():
            assert torch.equal(first.distance(), second.distance())


@pytest.mark.parametrize("kept", KEPT, ids=str)
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("read", [False, True])
def test_what_is_saved_comes_back(tmp_path, run, kept, read):
    if "heads" in kept and run == "no leading":
        kept = {"heads": [0]}
    with regard.record(**kept) as recording:
        RUNS[run]()
    if read:
        recording.read(regard.Received())  # finds the log-sum-exps
    recording.save(tmp_path)
    equal(recording, regard.load(tmp_path))


def test_a_generation_with_tokens_comes_back(tmp_path):
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
    for use in (loaded.heads, lambda: loaded.rollout(query=0), lambda: loaded.read(regard.Max())):
        use()


def saved(folder, run=sdpa, **options):
    with regard.record(**options) as recording:
        run()
    recording.save(folder)
    return recording


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
        kept = pattern.parts()[1]
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


# Damage


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


def test_it_is_said_what_is_damaged_and_what_to_do(tmp_path):
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


def former(folder):
    """Make a saved recording one of the former version, which had no checksums."""
    index = json.loads((folder / "recording.json").read_text())
    for name in ("sha256", "tensors"):
        del index[name]
    for entry in index["layers"]:
        entry["logsumexp"] = None
    (folder / "recording.json").write_text(json.dumps(index | {"version": 1}) + "\n")


@pytest.mark.parametrize("run", RUNS)
def test_a_recording_of_the_former_version_is_read(tmp_path, run):
    recording = saved(tmp_path, RUNS[run])
    former(tmp_path)
    equal(recording, regard.load(tmp_path))
    regard.load(tmp_path).save(tmp_path, overwrite=True)
    assert json.loads((tmp_path / "recording.json").read_text())["version"] == 2
    equal(recording, regard.load(tmp_path))


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


@pytest.mark.parametrize(("key", "value"), [("version", 3), ("version", "2"), ("format", "regard")])
def test_other_formats(tmp_path, key, value):
    saved(tmp_path)
    index = json.loads((tmp_path / "recording.json").read_text())
    write_index(tmp_path, index | {key: value})
    with pytest.raises(RecordError, match="reads 'regard recording', versions 1 and 2"):
        regard.load(tmp_path)


def damage(folder, change, tensors=None):
    """Rewrite both files after a change of the first layer's entry, and of tensors by role."""
    index = json.loads((folder / "recording.json").read_text())
    metadata, entry = {"mark": index["mark"]}, index["layers"][0]
    named = safetensors.torch.load_file(tensors_of(folder))
    for role, new in (tensors or {}).items():
        place = role.split()
        name = entry[place[0]] if len(place) == 1 else entry[place[0]][int(place[1])]
        named[name] = new(named[name]).contiguous()
    change(index, entry)
    safetensors.torch.save_file(named, tensors_of(folder), metadata=metadata)
    index["tensors"] = _files._checksum(tensors_of(folder))
    write_index(folder, index)


def write_index(folder, index):
    """Write an index down as one that was written so, and is not damaged."""
    index.pop("sha256")
    (folder / "recording.json").write_bytes(_files._sealed(index))


def nothing(index, entry):
    pass


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


@pytest.mark.parametrize("number", [2**40, 2**62, -(2**40), -(2**63), 2**63 - 1, S + 1, -1])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_bounds_outside_the_keys_are_cut(tmp_path, number, place, dtype):
    """A kernel that believed such a table would read outside the keys."""
    if dtype == torch.int32:
        number = max(-(2**31), min(number, 2**31 - 1))
    recording = saved(tmp_path, RUNS["hidden rows"])
    rows = recording[0].parts()[0].rows
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
    problem, _ = pattern.parts()
    scores = problem.query @ problem.key.mT * problem.scale
    weights = torch.softmax(scores.masked_fill(~visible, -math.inf), -1).nan_to_num(0)
    torch.testing.assert_close(pattern.dense(), weights, rtol=0, atol=1e-6)
    pattern.read(
        regard.Entropy(),
        regard.TopK(2),
        regard.Received(),
        regard.Distance(),
        regard.Offsets(3),
        regard.Image(2, 3),
    )


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
    pattern.read(
        regard.Entropy(),
        regard.TopK(2),
        regard.Received(),
        regard.Distance(),
        regard.Offsets(3),
        regard.Image(2, 3),
    )


def test_a_wrong_logsumexp_is_no_crash(tmp_path):
    recording = saved(tmp_path / "old", RUNS["causal"])
    recording[0].entropy()
    recording.save(tmp_path / "new")
    damage(tmp_path / "new", nothing, {"logsumexp": lambda t: torch.full_like(t, math.nan)})
    regard.load(tmp_path / "new")[0].dense()


# Saving that is broken off


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


def test_the_file_says_what_it_is(tmp_path):
    saved(tmp_path)
    index = json.loads((tmp_path / "recording.json").read_text())
    assert (index["format"], index["version"]) == ("regard recording", 2)
    with safe_open(tensors_of(tmp_path), framework="pt") as file:
        assert file.metadata() == {"mark": index["mark"]}
