"""The HTTP interface: what each address answers."""

import json
from threading import Event

import pytest
import torch
from support.explorer import address

from regard.page._windows import Window
from regard.page.subjects import CHARACTERS, GENERATED

TEXT = "the cat sat on the mat, the dog sat on the cat"
L, H = 13, 6
PLACE = {"layer": 1, "head": 4}


def test_health(client):
    assert client.get("/api/health").json() == {"ok": True}


def test_about_a_model(client):
    about = client.get("/api/about").json()
    (name,) = about.pop("runs")
    assert about.pop("example")
    # Only texts that its tokenizer can read whole.
    assert all(set(one) == {"name", "text"} for one in about.pop("examples"))
    assert about == {
        "title": "a model",
        "shape": "2 layers × 3 heads, context 31",
        "has_read": None,
        "writes": True,
        "generates": True,
        "limits": {"characters": CHARACTERS, "tokens": 31, "generate": GENERATED},
    }
    assert client.get(f"/api/runs/{name}").json()["text"] == TEXT


def test_about_a_recording(reader):
    assert reader.get("/api/about").json() == {
        "title": "a recording",
        "shape": "2 layers × 6 heads",
        "writes": False,
        "generates": False,
        "example": None,
        "limits": {"characters": 0, "tokens": 0, "generate": 0},
        "runs": ["0", "1"],
    }


def test_a_run_is_described(client, first, network):
    _, tokenizer = network
    pieces = tokenizer.tokens(tokenizer.encode(TEXT))
    assert "".join(token["text"] for token in first["tokens"]) == TEXT
    assert [token["label"] for token in first["tokens"]] == [p.replace(" ", "␣") for p in pieces]
    assert first["length"] == len(pieces)
    assert set(first) == {
        *("id", "title", "text", "tokens", "length", "causal", "layers", "next", "values", "notes")
    }
    assert [layer["heads"] for layer in first["layers"]] == [[0, 1, 2]] * 2
    assert first["notes"] == []


def test_heads_come_a_line_a_layer(reader, recorded, lines):
    scored = lines(reader.get(address("1", "heads")))
    assert scored == [recorded.run("1").scores(layer) for layer in range(2)]


def test_heads_begin_with_the_layer_that_is_looked_at(reader, recorded, lines):
    layers = [one["layer"] for one in lines(reader.get(address("1", "heads")))]
    turned = lines(reader.get(address("1", "heads", first=1)))
    assert [one["layer"] for one in turned] == [*layers[1:], *layers[:1]]
    assert reader.get(address("1", "heads", first=len(layers))).status_code == 404


@pytest.mark.parametrize("size", [None, 5, 2048])
def test_thumbnails(reader, padded, floats, size):
    fields = {"layer": 1} | ({} if size is None else {"size": size})
    answer = reader.get(address("0", "thumbnails", **fields))
    pictures = floats(answer, "X-Heads", "X-Rows", "X-Columns")
    side = min(size or 64, L)
    assert pictures.shape == (H, side, side)
    if side == L:
        torch.testing.assert_close(pictures.double(), padded.weights[1][0], rtol=1e-5, atol=2e-6)


def test_a_map(reader, padded, floats):
    fields = {"queries": "2,11", "keys": "3,10", "block": 1}
    window = floats(reader.get(address("1", "map", **PLACE, **fields)), "X-Rows", "X-Columns")
    expected = padded.weights[1][1, 4, 2:11, 3:10]
    torch.testing.assert_close(window.double(), expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("place", [(1, 4), (1, "mean"), ("mean", "mean")])
def test_a_sketch(reader, recorded, floats, place):
    at = dict(zip(("layer", "head"), place, strict=True))
    cells = floats(reader.get(address("1", "sketch", **at, block=4)), "X-Rows", "X-Columns")
    assert cells.shape == (4, 4)
    assert torch.equal(cells, recorded.run("1").sketch(*place, 4))


@pytest.mark.parametrize(("what", "axis"), [("row", "query"), ("column", "key")])
@pytest.mark.parametrize(
    ("layer", "head"), [(1, 4), (0, "mean"), ("mean", "mean")], ids=["head", "layer", "model"]
)
def test_rows_and_columns(reader, padded, floats, what, axis, layer, head):
    given = floats(reader.get(address("1", what, layer=layer, head=head, **{axis: 9})))
    weights = torch.stack(padded.weights)[:, 1]  # (layers, H, L, L)
    weights = weights.mean(0) if layer == "mean" else weights[layer]
    weights = weights.mean(0) if head == "mean" else weights[head]
    expected = weights[9] if axis == "query" else weights[:, 9]
    torch.testing.assert_close(given.double(), expected, rtol=1e-5, atol=2e-6)


def test_cells_readouts_and_steps(reader, recorded, floats):
    run = recorded.run("1")
    cell = reader.get(address("1", "cell", **PLACE, query=9, key=7)).json()
    assert cell == run.cell(1, 4, 9, 7)
    numbers = floats(reader.get(address("1", "readouts", **PLACE))).view(4, L)
    assert torch.equal(numbers, run.readouts(1, 4).float())
    assert reader.get(address("1", "steps", **PLACE, query=9)).json() == run.steps(1, 4, 9)
    paged = {"first": 2, "count": 3, "picked": 11}
    answer = reader.get(address("1", "steps", **PLACE, query=9, **paged)).json()
    assert answer == run.steps(1, 4, 9, **paged)


@pytest.mark.parametrize("place", [(0, "mean"), ("mean", "mean")], ids=["layer", "model"])
def test_means_have_maps_cells_and_readouts(reader, recorded, floats, place):
    run = recorded.run("1")
    at = dict(zip(("layer", "head"), place, strict=True))
    cell = reader.get(address("1", "cell", **at, query=9, key=7)).json()
    assert cell == run.cell(*place, 9, 7)
    numbers = floats(reader.get(address("1", "readouts", **at))).view(4, L)
    assert torch.equal(numbers, run.readouts(*place).float())
    *progress, last = reader.get(address("1", "readouts/progress", **at)).text.splitlines()
    assert json.loads(last) == {"ready": True}
    assert all(json.loads(line).keys() == {"done", "total"} for line in progress)
    window = {"queries": "4,12", "keys": "0,8", "block": 2}
    cells = floats(reader.get(address("1", "map", **at, **window)), "X-Rows", "X-Columns")
    assert torch.equal(cells, run.map(*place, Window((4, 12), (0, 8), 2), Event()).float())


@pytest.mark.parametrize("query", [0, 3])
def test_a_query_that_sees_nothing_is_answered(reader, query):
    """Those of the padding; JSON knows no infinity."""
    steps = reader.get(address("1", "steps", **PLACE, query=query))
    cell = reader.get(address("1", "cell", **PLACE, query=query, key=0))
    assert steps.status_code == cell.status_code == 200
    assert steps.json()["logsumexp"] is cell.json()["logsumexp"] is None
