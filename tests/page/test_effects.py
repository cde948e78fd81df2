"""The HTTP interface: what the next token rests on."""

from threading import Event

import pytest
import torch

import regard


@pytest.fixture
def measure(client, first, lines):
    def run(over, name=first["id"]):
        return lines(client.get(f"/api/runs/{name}/effects?over={over}"))

    return run


@pytest.mark.parametrize("over", ["heads", "keys"])
def test_effects_are_those_of_the_library_and_say_how_far_they_are(measure, first, network, over):
    model, tokenizer = network
    *progress, last = measure(over)
    ids = torch.tensor(tokenizer.encode(first["text"]))
    target = regard.lens.LogProbability(first["next"][0]["token"])
    expected = regard.lens.effects(model, ids, target, over=over)
    torch.testing.assert_close(
        torch.tensor(last["effects"], dtype=torch.float64), expected.values, rtol=1e-4, atol=1e-5
    )
    assert last["token"] == target.token
    assert last["unchanged"] == pytest.approx(expected.unchanged, abs=1e-5)
    assert progress[-1] == {"done": len(expected.places), "total": len(expected.places)}
    done = [line["done"] for line in progress]
    assert done == sorted(done)
    assert last["spans"] == (None if over == "heads" else [list(one) for one in expected.places])
    assert measure(over) == [last]  # it was measured once


def test_passages_are_those_of_the_library(client, first, network, lines, refused):
    model, tokenizer = network
    spans = [(0, 2), (2, 5)]

    def measured(query):
        return lines(client.get(f"/api/runs/{first['id']}/passages?spans={query}"))

    *progress, last = measured("0,2;2,5")
    target = first["next"][0]["token"]
    ids = torch.tensor(tokenizer.encode(first["text"]))
    answer = regard.lens.LogProbability(target)
    expected = regard.lens.effects(model, ids, answer, over=spans, hidden_from="question")
    with regard.record(model) as recording, torch.no_grad():
        model(ids[None])
    weights = regard.lens.passage_weights(recording, spans, answer)
    assert last["effects"] == pytest.approx(expected.values.tolist(), abs=1e-5)
    assert last["without"] == pytest.approx(expected.without_all, abs=1e-5)
    assert last["weights"] == pytest.approx(weights.mean[:2].tolist(), abs=1e-6)
    assert (last["token"], last["spans"]) == (target, [[0, 2], [2, 5]])
    assert progress[-1] == {"done": 3, "total": 3}
    assert measured("0,2;2,5") == [last]  # it was measured once
    assert "overlaps" in measured("0,3;2,5")[0]["error"]
    answer = client.get(f"/api/runs/{first['id']}/passages?spans=0,2;3")
    assert "spans is '0,2;3', but must be pairs" in refused(answer, 422)


def test_effects_that_are_refused(measure, client, first, reader, refused):
    off = {"changes": [{"kind": "off", "layer": 0, "head": 1}]}
    changed = client.post(f"/api/runs/{first['id']}/changed", json=off).json()["id"]
    assert "effects are those of the text as it is" in measure("heads", changed)[0]["error"]
    answer = client.get(f"/api/runs/{first['id']}/effects?over=layers")
    assert "over is 'layers', but must be 'heads' or 'keys'" in refused(answer, 422)
    assert "there is no model" in refused(reader.get("/api/runs/0/effects?over=heads"), 422)


def test_disconnecting_cancels_a_measurement_and_rows_are_answered_meanwhile(
    serve, subject, raw, monkeypatch
):
    name = subject.about()["runs"][0]
    begun, go, ended = Event(), Event(), Event()

    def effects(*_given, progress, **_options):
        try:
            for done in range(1000):
                progress(done, 1000)
                begun.set()
                go.wait(0.01)
        finally:
            ended.set()

    monkeypatch.setattr("regard.page._changes.effects", effects)
    explorer = serve(subject)
    import http.client

    connection = http.client.HTTPConnection(explorer.host, explorer.port, timeout=30)
    connection.request("GET", f"/api/runs/{name}/effects?over=heads")
    answer = connection.getresponse()
    assert begun.wait(30)
    assert answer.readline().startswith(b'{"done": 0')
    assert raw(explorer, f"/api/runs/{name}/row?layer=1&head=2&query=7").status == 200
    answer.close()
    connection.close()
    assert ended.wait(30)
