"""A text whose queries and keys are not kept: the model runs again for what is shown of it.

Every answer is compared with that of the same text recorded.
"""

import itertools
import json

import pytest
import torch

from regard.page import PageError, report
from regard.page._changes import Ablation
from regard.page.subjects import ModelSubject

from .conftest import TEXT

FREE = "regard.models.language_model.free_memory"


@pytest.fixture
def tight(network, monkeypatch):
    """The subject of the model where hardly any memory is free."""
    monkeypatch.setattr(FREE, lambda: 1001)
    return ModelSubject(*network, title="a model", text=TEXT)


@pytest.fixture
def asked(ask, subject, tight):
    """Ask both servers for a part of their first text."""
    clients = [ask(subject), ask(tight)]
    name = subject.about()["runs"][0]

    def make(path, **given):
        return [one.get(f"/api/runs/{name}{path}", params=given) for one in clients]

    return make


def test_it_is_said_why_and_what_happens(asked):
    kept, read = (answer.json() for answer in asked(""))
    assert read.pop("kept") is False
    assert "kept" not in kept
    (note,) = read.pop("notes")
    assert note.startswith(f"the queries, keys and values of these {kept['length']} tokens would ")
    assert "so they are not kept: the heads were named and pictured while the model ran" in note
    assert kept.pop("notes") == []
    assert (kept.pop("values"), read.pop("values")) == (True, False)
    assert read == kept


def test_heads_are_named_and_pictured_without_another_run(asked, tight, monkeypatch):
    monkeypatch.setattr(tight._model, "record", None)
    kept, read = ([json.loads(line) for line in one.text.splitlines()] for one in asked("/heads"))
    assert read == kept
    for layer in range(2):
        recorded, seen = asked("/thumbnails", layer=layer)
        assert seen.status_code == 200
        assert seen.content == recorded.content


PARTS = [
    ("/row", {"query": 7}),
    ("/column", {"key": 3}),
    ("/cell", {"query": 7, "key": 3}),
    ("/map", {"queries": "0,11", "keys": "0,11", "block": 2}),
    ("/sketch", {"block": 2}),
    ("/readouts", {}),
    ("/thumbnails", {"size": 5}),
]


def test_any_part_of_a_layer_is_computed_on_request(asked):
    for (path, given), head in itertools.product(PARTS, ("2", "mean")):
        for layer in (1, 0, 1):
            recorded, seen = asked(path, layer=layer, head=head, **given)
            assert seen.status_code == 200, seen.text
            assert seen.content == recorded.content, (path, head, layer)


def test_the_model_runs_once_for_each_layer_that_is_shown_and_one_is_cached(tight, monkeypatch):
    runs = []
    record = tight._model.record

    def counted(ids, **given):
        runs.append(given["layers"])
        return record(ids, **given)

    monkeypatch.setattr(tight._model, "record", counted)
    run = tight.run(tight.about()["runs"][0])
    for layer, head in ((0, 0), (0, 2), (1, 1), (1, 0), (0, 0)):
        run.row(layer, head, 5)
        run.readouts(layer, head)
    assert runs == [0, 1, 0]
    assert {layer for layer, _ in run._heads} == set(run._layers) == {0}


def test_a_mean_over_all_layers_is_refused_with_the_reason(asked, refused):
    recorded, seen = asked("/readouts", layer="mean", head="mean")
    assert recorded.status_code == 200
    sentence = refused(seen, 422)
    assert "not kept, and no mean over all layers is computed: choose a layer" in sentence


def test_a_changed_run_is_shown_as_it_was_changed(network, monkeypatch):
    rows, kept = [], []
    for free in (None, 1001):
        monkeypatch.setattr(FREE, lambda free=free: free)
        subject = ModelSubject(*network, title="a model", text=TEXT)
        run = subject.run(subject.about()["runs"][0])
        changed = subject.change(run, [Ablation(kind="off", layer=0, head=1)])
        assert not torch.equal(changed.row(1, 0, 9), run.row(1, 0, 9))
        rows.append(changed.row(1, 0, 9))
        kept.append(changed.objection is None)
    assert torch.equal(*rows)
    assert kept == [True, False]


def test_passages_are_measured(asked):
    kept, read = (one.text.splitlines()[-1] for one in asked("/passages", spans="0,3;3,6"))
    assert json.loads(read) == json.loads(kept)


def test_a_report_is_refused_with_the_reason(tight, tmp_path):
    with pytest.raises(PageError, match="free, and a report holds them: give a shorter text"):
        report(tight, tmp_path / "report.html")
    assert not any(tmp_path.iterdir())


def test_a_pattern_beyond_a_band_is_pictured_too(network, monkeypatch):
    monkeypatch.setattr("regard.page._bands._BAND", 50)
    run = ModelSubject(*network, title="a model", text=TEXT)
    pictures = run.run(run.about()["runs"][0]).thumbnails(0, 64)
    monkeypatch.setattr(FREE, lambda: 1001)
    tight = ModelSubject(*network, title="a model", text=TEXT)
    read = tight.run(tight.about()["runs"][0]).thumbnails(0, 64)
    torch.testing.assert_close(read, pictures, rtol=1e-5, atol=1e-7)  # summed in other parts
