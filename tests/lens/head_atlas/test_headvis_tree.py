"""HeadVis' tree: what its loaders require of ours, and what ours takes of any."""

import json
import math
import re
from types import SimpleNamespace

import pytest

from regard.lens.head_atlas.headvis import METRICS
from regard.lens.head_atlas.headvis_read import load_headvis
from regard.lens.head_atlas.headvis_tree import export_headvis


def example(decile, weight, outside=False):
    tokens = [f" t{i}" for i in range(20, 31)]
    links = [
        {"position": 22, "weight": weight, "moved": 1.0, "tokens": [" a", " b"], "at": 1},
        {"position": 27, "weight": weight / 2, "moved": 0.5, "tokens": [" a", " b"], "at": 1},
        {"position": 3, "weight": weight / 4, "moved": 0.1, "tokens": [" a", " b"], "at": 1},
    ]
    return {
        "document": 5,
        "source": "a/b",
        "position": 29,
        "start": 20,
        "tokens": tokens,
        "value": weight,
        "decile": decile,
        "rest": 0.3,
        "moved": 2.0,
        "toward": None,
        "links": links[2:] if outside else links,
    }


@pytest.fixture
def atlas():
    rows = [
        {"layer": layer, "head": head, "role": "induction", "lead": 0.1 * head, "lead_margin": None}
        | {name: 0.123456789 + layer + i for i, name in enumerate(METRICS)}
        for layer in (0, 1)
        for head in (0, 1, 2)
    ]
    rows[4]["qk_distance"] = None
    details = {
        "profile": {"edges": [0, 1, 2, 4], "share": [0.1, 0.2, 0.3, 0.4], "uniform": [0.25] * 4},
        "histogram": {"edges": [0, 0.5, 1], "counts": [3, 7]},
        "examples": {
            "deciles": [example(1, 0.2), example(7, 0.4, outside=True), example(10, 0.81237)]
        },
    }
    about = {
        "model": "org/Model 1",
        "model_fingerprint": "ab",
        "corpus": ["docs", "more"],
        "documents": 17,
        "length": 64,
        "seed": 3,
        "made_with": "regard",
    }
    columns = [
        {"name": name, "title": name, "meaning": f"of {name}", "unit": "", "group": "headvis"}
        for name in ("lead", "role", *METRICS)
    ]
    return SimpleNamespace(
        about=about, columns=columns, rows=rows, details=lambda layer, head: details
    )


def loaded_by_their_requirements(exports):
    """Read a tree as the loaders of metrics and of sequences do: yield rows of their tables."""
    (run,) = exports.glob("*/headvis/*")
    config = json.loads((run / "config.json").read_text())
    merged = {**config, **config["pipeline_config"]}
    for key in ("model_name", "dataset_name", "n_sequences", "seq_len", "dtype"):
        assert merged[key] is not None
    assert merged["attn_implementation"] is not None
    assert merged["np_model_id"] == run.parent.parent.name
    assert (run / "server_config.json").read_text().strip() == "{}"
    assert (run / "attributions" / "manifest.json").read_text().strip() == "{}"
    assert {"heads", "n_layers", "n_heads", "n_intervals", "metric_descriptions"} <= set(config)
    assert config["has_umap"] is False
    assert set(config["metrics"]) == set(config["metric_descriptions"])
    scatter = json.loads((run / "scatter_data.json").read_text())
    assert config["heads"] == [[entry["layer"], entry["head"]] for entry in scatter]
    for entry in scatter:
        file = run / "heads" / config["head_data_pattern"].format(**entry)
        assert re.fullmatch(r"L\d+H\d+\.json", file.name)
        head = json.loads(file.read_text())
        for plot in config["custom_plots"]:
            bins = head[plot["key"]]
            assert len(bins["bin_edges"]) == len(bins["bin_values"]) + 1
        for table in config["custom_tables"]:
            assert all(isinstance(line["token"], str) for line in head[table["key"]])
        assert set(config["statistics_display"]) == set(head["statistics"])
        for one in head["sequences"]:
            size = one["seq_len"]
            assert size == len(one["tokens"])
            assert len(one["attention_indices"]) == len(one["attention_values"])
            assert 1 <= one["interval"] <= config["n_intervals"]
            assert 0 < float(one["max_activation"]) <= 1
            assert all(i % size <= i // size < size for i in one["attention_indices"])
        yield entry, head


def test_their_loaders_read_ours(atlas, tmp_path):
    export_headvis(atlas, tmp_path)
    found = list(loaded_by_their_requirements(tmp_path))
    assert len(found) == len(atlas.rows)
    entry, head = found[4]
    assert entry["qk_distance"] is None
    assert math.isclose(entry["induction_score"], 6.123456789)
    assert math.isclose(entry["lead"], 0.1)  # our own columns too
    assert "role" not in entry
    first, last = head["sequences"]  # the second has no link within its window
    assert first["attention_indices"] == [9 * 11 + 2, 9 * 11 + 7]
    assert last["attention_values"] == [0.8124, 0.4062]
    assert (first["interval"], last["interval"]) == (1, 10)
    assert head["top_key_tokens"][0] == {"token": " t22", "weight": 1.0124}
    assert head["top_query_tokens"] == [{"token": " t29", "weight": 1.5186}]
    assert head["qk_distance_histogram"]["bin_edges"] == [0, 1, 2, 4, 64]


def test_ours_is_read_back(atlas, tmp_path):
    tree = load_headvis(export_headvis(atlas, tmp_path, name="m", dataset="d"))
    assert tree.folder == tmp_path / "m" / "headvis" / "d"
    assert tree.about["documents"] == 17
    frame = tree.frame()
    for name in (*METRICS, "lead"):
        theirs = [row[name] for row in tree.rows]
        assert theirs == [row[name] for row in atlas.rows]
        assert name in frame
    details = tree.details(1, 2)
    assert details["profile"]["edges"] == [0, 1, 2, 4]
    assert details["histogram"] == {"edges": [0, 0.5, 1], "counts": [3, 7]}
    one = details["examples"]["deciles"][-1]
    assert one["decile"] == 10
    assert one["tokens"][one["position"] - one["start"]] == " t29"
    assert [(link["position"], link["weight"]) for link in one["links"]] == [
        (2, 0.8124),
        (7, 0.4062),
    ]
    assert one["links"][0]["tokens"] == [" t21", " t22", " t23"]
    with pytest.raises(KeyError, match=r"no head 7\.0"):
        tree.details(7, 0)
    with pytest.raises(FileExistsError, match="holds a tree already"):
        export_headvis(atlas, tmp_path, name="m", dataset="d")


def test_fifths_and_key_0(atlas, tmp_path):
    """A tree as theirs: whole sequences, five intervals, weight on key 0."""
    run = export_headvis(atlas, tmp_path)
    config = json.loads((run / "config.json").read_text())
    config["n_intervals"] = config["pipeline_config"]["n_intervals"] = 5
    (run / "config.json").write_text(json.dumps(config))
    head = json.loads((run / "heads" / "L0H0.json").read_text())
    sequence = {"sequence_id": 3, "interval": 2, "tokens": list("abcd"), "seq_len": 4}
    sequence |= {"attention_indices": [4, 8, 9, 13], "attention_values": [0.9, 0.3, 0.6, 0.5]}
    head["sequences"] = [sequence]
    (run / "heads" / "L0H0.json").write_text(json.dumps(head))
    (one,) = load_headvis(run).details(0, 0)["examples"]["deciles"]
    assert (one["decile"], one["position"], one["value"], one["document"]) == (4, 2, 0.6, 3)
    assert [link["position"] for link in one["links"]] == [1]


def broken(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("file", "change", "says"),
    [
        ("config.json", lambda c: c["pipeline_config"].pop("seq_len"), "seq_len must be"),
        ("config.json", lambda c: c.update(head_data_pattern="../x"), "head_data_pattern is"),
        ("config.json", lambda c: c.update(metrics=[1]), "metrics must be"),
        ("scatter_data.json", lambda c: c[1].update(layer=True), r"\[1\]\.layer must be"),
        ("scatter_data.json", lambda c: c[1].update(lead="x"), r"\[1\]\.lead is 'x'"),
        ("scatter_data.json", lambda c: c.append(c[0]), "has a head twice"),
        ("heads/L0H0.json", lambda c: c.pop("sequences"), "sequences is missing"),
        (
            "heads/L0H0.json",
            lambda c: c["sequences"][1]["attention_indices"].append(0),
            r"sequences\[1\]\.attention_values has 2 for 3",
        ),
        (
            "heads/L0H0.json",
            lambda c: c["sequences"][0]["attention_indices"].__setitem__(0, 10**30),
            r"sequences\[0\]\.attention_indices holds",
        ),
        (  # a key after its query
            "heads/L0H0.json",
            lambda c: c["sequences"][0]["attention_indices"].__setitem__(0, 9 * 11 + 10),
            r"sequences\[0\]\.attention_indices holds",
        ),
        (
            "heads/L0H0.json",
            lambda c: c["sequences"][0]["attention_values"].__setitem__(0, 10**400),
            r"sequences\[0\]\.attention_values holds",
        ),
        ("heads/L0H0.json", lambda c: c["histogram"]["bin_edges"].pop(), "bin_edges has 2"),
    ],
)
def test_an_error_names_file_and_field(atlas, tmp_path, file, change, says):
    run = export_headvis(atlas, tmp_path)
    broken(run / file, change)
    with pytest.raises(ValueError, match=says) as caught:
        load_headvis(run).details(0, 0)
    assert file in str(caught.value)


@pytest.mark.parametrize("text", [b"[" * 100_000, b"\xff\xfe", b"{", b"7"])
def test_what_is_no_object_is_refused(atlas, tmp_path, text):
    run = export_headvis(atlas, tmp_path)
    (run / "config.json").write_bytes(text)
    with pytest.raises(ValueError, match=re.escape(str(run / "config.json"))):
        load_headvis(run)


def test_too_large_a_file_is_not_parsed(atlas, tmp_path):
    run = export_headvis(atlas, tmp_path)
    (run / "config.json").write_bytes(b" " * (2**24 + 1))
    with pytest.raises(ValueError, match="larger than 16 MiB"):
        load_headvis(run)
    (run / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match="give the folder"):
        load_headvis(run)
