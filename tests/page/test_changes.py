"""The HTTP interface: running a text with some attention changed."""

import pytest
import torch
from support.explorer import address

from regard.page._changes import MOST

OFF = {"kind": "off", "layer": 0, "head": 1}
CUT = {"kind": "cut", "layer": 1, "head": 2, "queries": [9, 12], "keys": [3, 5]}


@pytest.fixture
def change(client, first):
    def run(*changes, name=first["id"]):
        return client.post(f"/api/runs/{name}/changed", json={"changes": changes})

    return run


def logits_by_hand(model, ids, layer, head):
    """The model with one head's context zeroed, before the projection that follows it."""
    size = model.config.dim // model.config.heads

    def zero(_module, given):
        (context,) = given
        context = context.clone()
        context[..., head * size : (head + 1) * size] = 0
        return (context,)

    handle = model.h[layer].attn.c_proj.register_forward_pre_hook(zero)
    try:
        with torch.no_grad():
            return model(torch.tensor(ids)[None])[0, -1]
    finally:
        handle.remove()


def test_without_a_head_the_next_token_is_what_the_model_gives_without_it(change, first, network):
    model, tokenizer = network
    ids = tokenizer.encode(first["text"])
    after = logits_by_hand(model, ids, 0, 1).softmax(-1)
    with torch.no_grad():
        before = model(torch.tensor(ids)[None])[0, -1].softmax(-1)
    run = change(OFF).json()
    assert run["tokens"] == first["tokens"]
    assert run["causal"] is True
    for one in run["next"]:
        assert one["probability"] == pytest.approx(float(after[one["token"]]), abs=1e-6)
        assert one["before"] == pytest.approx(float(before[one["token"]]), abs=1e-6)
    # The likeliest of before and of after are both there.
    tokens = [one["token"] for one in run["next"]]
    assert {int(before.argmax()), int(after.argmax())} <= set(tokens)
    most = torch.maximum(before, after)[tokens]
    assert most.tolist() == sorted(most.tolist(), reverse=True)


def test_only_what_comes_after_a_change_is_changed(change, client, first, floats):
    run = change(OFF).json()

    def row(name, layer, head):
        return floats(client.get(address(name, "row", layer=layer, head=head, query=7)))

    torch.testing.assert_close(row(run["id"], 0, 1), row(first["id"], 0, 1))
    assert (row(run["id"], 1, 1) - row(first["id"], 1, 1)).abs().max() > 1e-4


def test_cut_keys_have_no_weight_and_the_rest_shares_it(change, client, first, floats):
    run = change(CUT).json()

    def row(name, query):
        return floats(client.get(address(name, "row", layer=1, head=2, query=query)))

    before, after = row(first["id"], 10), row(run["id"], 10)
    assert after[3:5].tolist() == [0, 0]
    kept = before.clone()
    kept[3:5] = 0
    torch.testing.assert_close(after, kept / kept.sum(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(row(run["id"], 8), row(first["id"], 8))
    cell = client.get(address(run["id"], "cell", layer=1, head=2, query=10, key=3)).json()
    assert cell["visible"] is False


@pytest.mark.parametrize(
    ("place", "heads"),
    [({}, 6), ({"layer": 1}, 3), ({"layer": 1, "head": 0}, 1)],
    ids=["everywhere", "a layer", "a head"],
)
def test_a_token_can_be_cut_from_all_that_follows(change, client, floats, place, heads):
    run = change({"kind": "cut", "keys": [4, 5], **place}).json()
    found = 0
    for layer in range(2):
        for head in range(3):
            at = address(run["id"], "column", layer=layer, head=head, key=4)
            column = floats(client.get(at))
            assert column[4] > 0  # the token itself sees itself
            found += int(not column[5:].any())
    assert found == heads


def test_the_same_changes_are_the_same_run(change, client, first):
    run = change(OFF, CUT).json()
    assert change(OFF, CUT).json() == run
    assert change(OFF, CUT, OFF).json() == run  # what is stated twice is made once
    assert client.get(f"/api/runs/{run['id']}").json() == run
    assert run["id"] not in {first["id"], change(CUT).json()["id"]}
    assert client.get(f"/api/runs/{first['id']}").json() == first  # as it was


def test_a_changed_run_answers_everything_a_run_does(change, client, lines):
    name = change(OFF, CUT).json()["id"]
    for what, fields in {
        "thumbnails": {"layer": 1, "size": 8},
        "map": {"layer": 1, "head": 2, "queries": "0,12", "keys": "0,12", "block": 1},
        "readouts": {"layer": 1, "head": 2},
        "steps": {"layer": 1, "head": 2, "query": 10},
    }.items():
        assert client.get(address(name, what, **fields)).status_code == 200
    assert len(lines(client.get(address(name, "heads")))) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([{**OFF, "layer": 2}], "layer=2 is none of 0 … 1"),
        ([{**OFF, "head": 3}], "head=3 is none of 0 … 2"),
        ([{"kind": "off", "layer": 0}], "changes.0.off.head is missing"),
        ([{**OFF, "layer": -1}], "must be at least 0"),
        ([{**OFF, "layer": 0.5}], "must be a whole number"),
        ([{**CUT, "keys": [3, 99]}], "keys=3,99 is not a range within 0,"),
        ([{**CUT, "keys": [3, 3]}], "keys=3,3 is not a range within 0,"),
        ([{**CUT, "queries": [5, 4]}], "queries=5,4 is not a range within 0,"),
        ([{**CUT, "keys": [3]}], "changes.0.cut.keys"),
        ([{**CUT, "layer": None}], "head=2 of all layers is none"),
        ([{"kind": "cut"}], "changes.0.cut.keys is missing"),
        ([{"kind": "cut", "keys": [23, 24]}], "the last token has no later one"),
        ([{"kind": "other"}], "must have kind off or cut"),
        ([{}], "must have kind off or cut"),
        ([], "must have at least 1 entry"),
        ([OFF] * (MOST + 1), f"must have at most {MOST} entries"),
        (None, "changes"),
        ([None], "changes.0"),
    ],
    ids=str,
)
def test_changes_that_are_refused(shared, shared_first, refused, changes, message):
    answer = shared.post(f"/api/runs/{shared_first['id']}/changed", json={"changes": changes})
    assert message in refused(answer, 422)


def test_a_changed_run_is_not_changed_again(change, refused):
    name = change(OFF).json()["id"]
    assert "change the text as it is" in refused(change(CUT, name=name), 422)


def test_a_recording_has_no_model_to_run(reader, refused):
    answer = reader.post("/api/runs/0/changed", json={"changes": [OFF]})
    assert "there is no model to run" in refused(answer, 422)
