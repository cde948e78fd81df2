"""The page shows the head history of a training run, and opens the models that were kept."""

import json

import pytest
import torch
from support.explorer import TRAINED

from regard.cli.checks import Asked
from regard.cli.errors import MisuseError
from regard.cli.subject import subject_of
from regard.gpt import head_history, load
from regard.page._report import report_html
from regard.page.subjects import ModelSubject
from regard.page.training import training_of


@pytest.fixture(scope="module")
def folder(train_folder):
    """Heads recorded at each second update of six, models kept at each third."""
    return train_folder(evaluate_every=3, record_every=2, keep_every=3)


def opened(folder):
    """The subject of the command, of which nothing but the model is asked."""
    unset = dict.fromkeys(("recording", "text", "dtype", "weights", "system"))
    flags = dict.fromkeys(("fetch", "chat", "no_bos"), False)
    return subject_of(Asked(model=str(folder), device="cpu", **unset, **flags))


@pytest.fixture
def trained(folder):
    return ModelSubject(
        *load(folder), title="mine", text=TRAINED[:23], training=training_of(folder)
    )


@pytest.fixture
def formed(ask, trained):
    return ask(trained)


def test_the_page_is_told_what_was_recorded(formed, folder):
    kept = head_history(folder)
    assert formed.get("/api/about").json()["training"] == 3
    answer = formed.get("/api/training").json()
    assert answer["steps"] == [2, 4, 6]
    assert answer["kept"] == [3, 6]
    assert answer["tokens"] == len(kept.tokens)
    scores = torch.tensor(
        [
            [[[float("nan") if v is None else v for v in head] for head in layer] for layer in at]
            for at in answer["scores"]
        ]
    )
    torch.testing.assert_close(scores, kept.scores, equal_nan=True)
    assert [[tuple(layer) for layer in at] for at in answer["roles"]] == list(map(list, kept.roles))
    lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    assert answer["losses"] == [line["loss"] for line in lines if line["step"] in {2, 4, 6}]


def test_pictures_are_those_that_were_recorded(formed, folder, floats):
    pictures = floats(formed.get("/api/training/4/thumbnails"))
    expected = head_history(folder).images[1]
    assert torch.equal(pictures.reshape(expected.shape), expected)


@pytest.mark.parametrize("path", ["/api/training", "/api/training/2/thumbnails"])
def test_where_nothing_was_recorded_it_is_said(client, refused, path):
    assert "training" not in client.get("/api/about").json()
    assert "no training was recorded" in refused(client.get(path), 404)


def test_an_update_that_was_not_recorded(formed, refused):
    assert "update 3" in refused(formed.get("/api/training/3/thumbnails"), 404)


def test_a_kept_model_is_opened_beside_the_newest(formed, trained, folder, floats):
    about = formed.get("/api/about?update=3").json()
    assert about["title"] == "mine, update 3"
    assert about["training"] == 3
    (name,) = about["runs"]
    model, tokenizer = load(folder / "run/checkpoints/00000003")
    ids = torch.tensor(tokenizer.encode(TRAINED[:23]))
    expected = model.with_patterns(ids)[1][1][2, 9]
    path = f"/api/runs/{name}/row?layer=1&head=2&query=9"
    torch.testing.assert_close(floats(formed.get(f"{path}&update=3")), expected, atol=1e-6, rtol=0)
    newest = floats(formed.get(path))
    assert (newest - expected).abs().max() > 1e-5
    assert trained.at(3) is trained.at(3)


def test_a_model_that_was_not_kept(formed, client, reader, refused):
    assert "was not kept" in refused(formed.get("/api/about?update=2"), 422)
    assert "was not kept" in refused(client.get("/api/about?update=2"), 422)
    assert "this is a recording" in refused(reader.get("/api/about?update=2"), 422)
    refused(formed.get("/api/about?update=x"), 422)


def test_only_two_earlier_models_stay_open(trained):
    trained.training.kept.update(dict.fromkeys((11, 12), trained.training.kept[3]))
    first = trained.at(3)
    for update in (11, 12):
        trained.at(update)
    assert trained.at(3) is not first


def test_a_report_offers_no_training(trained):
    assert trained.about()["training"] == 3
    assert '"training": ' not in report_html(trained)


@pytest.mark.parametrize("damage", [b"", b'{"step": 2}\n{"step": 4, "lo', b"[1]\n\xff\n"])
def test_losses_that_can_not_be_read_are_left_out(folder, damage):
    path = folder / "run/metrics.jsonl"
    whole = path.read_bytes()
    try:
        path.write_bytes(damage)
        with pytest.warns(RuntimeWarning, match=rf"{path}: the lines of .* are damaged or missing"):
            losses = training_of(folder).describe()["losses"]
        assert losses == [None] * 3
    finally:
        path.write_bytes(whole)


def test_a_model_without_a_run_has_none(folder, tmp_path):
    (tmp_path / "model").mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / "model" / name).write_bytes((folder / name).read_bytes())
    assert training_of(tmp_path / "model") is None


def test_a_model_that_lacks_characters_of_the_example_opens(folder):
    about = opened(folder).about()
    assert set(about["example"]) <= set(TRAINED)
    assert len(about["example"]) > 40


def test_damaged_recordings_are_told_in_a_line(folder):
    path = folder / "run/patterns/00000004.safetensors"
    whole = path.read_bytes()
    try:
        path.write_bytes(whole[:50])
        with pytest.raises(MisuseError, match=r"patterns is damaged: .*00000004"):
            opened(folder)
    finally:
        path.write_bytes(whole)
    assert opened(folder).training.steps == (2, 4, 6)
