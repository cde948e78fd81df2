"""Views of a pattern: the server's answers in each beside the definition in float64.

Axes: H heads, L queries and keys, E model dimension.
"""

import copy

import pytest
import torch
from support.explorer import address, near

import regard
from regard.page import RecordingSubject
from regard.page._live import live_html
from regard.page._report import report_html
from regard.page.subjects import ModelSubject

TEXT = "the cat sat on the mat, the dog sat on the cat"
LAYERS, HEADS = 2, 3
NAMES = ["weight", "moved", "toward", "without"]


def _rested(weights):
    """The keys on which heads rest, written out: mean weight above 0.3 of six others or more."""
    length = weights.shape[-1]
    rests = torch.zeros(HEADS, length, dtype=torch.bool)
    for head in range(HEADS):
        for key in range(length):
            others = range(key + 1, length)
            if len(others) >= max(6, (length - 1) / 5):
                rests[head, key] = weights[head, others, key].mean() > 0.3
    return rests


@pytest.fixture(scope="module")
def written(network):
    """Each view's entries by the definition, ``(H, L, L)`` of each layer, by hooks in float64."""
    model, tokenizer = copy.deepcopy(network[0]).double(), network[1]
    kept = {}
    for name, part in model.named_modules():
        part.register_forward_hook(
            lambda _, args, output, name=name: kept.update({name: (args[0], output)})
        )
    ids = torch.tensor(tokenizer.encode(TEXT))
    with torch.no_grad():
        logits = model(ids)[-1]
        answer = int(logits.argmax())
        stream = kept["ln_f"][0].flatten(0, -2)[-1]
        gain = model.ln_f.weight * model.wte.weight[answer]
        scale = (stream.var(correction=0) + model.config.norm_eps).rsqrt()
        along = scale * (gain - gain.mean())
        entries = {name: [] for name in NAMES}
        for layer in range(LAYERS):
            parts = kept[f"h.{layer}.attn.c_attn"][1].flatten(0, -2).unflatten(-1, (3, HEADS, 5))
            query, key, value = parts.permute(1, 2, 0, 3)
            hidden = torch.ones(len(ids), len(ids), dtype=torch.bool).triu(1)
            scores = (query @ key.mT / 5**0.5).masked_fill(hidden, -torch.inf)
            weights = scores.softmax(-1)
            output = model.h[layer].attn.c_proj.weight.T.unflatten(0, (HEADS, 5))
            added = weights[..., None] * (value @ output)[:, None]  # (H, L, L, E): what arrives
            rests = _rested(weights)
            beside = scores.masked_fill(rests[:, None], -torch.inf).softmax(-1).nan_to_num(0)
            entries["weight"].append(weights)
            entries["moved"].append(added.norm(dim=-1))
            entries["toward"].append(added @ along)
            entries["without"].append(beside)
    return {name: torch.stack(layers) for name, layers in entries.items()}


def test_the_views_differ_on_this_text(written):
    assert (written["without"] - written["weight"]).abs().amax((-1, -2)).max() > 0.3  # heads rest
    assert (written["toward"] < 0).any()


@pytest.mark.parametrize("view", NAMES)
def test_every_answer_is_of_the_view(client, first, floats, written, view):
    entries, length = written[view], first["length"]
    place = {"layer": 1, "head": 2, "view": view}
    layer = {"layer": 0, "head": "mean", "view": view}
    every = {"layer": "mean", "head": "mean", "view": view}
    whole = {"queries": f"0,{length}", "keys": f"0,{length}", "block": 1}

    def ask(what, fields, *sizes):
        return floats(client.get(address(first["id"], what, **fields)), *sizes)

    near(ask("row", {**place, "query": 11}), entries[1, 2, 11])
    near(ask("row", {**every, "query": 9}), entries[:, :, 9].mean((0, 1)))
    near(ask("column", {**layer, "key": 3}), entries[0, :, :, 3].mean(0))
    near(ask("map", {**place, **whole}, "X-Rows", "X-Columns"), entries[1, 2])
    near(ask("map", {**layer, **whole}, "X-Rows", "X-Columns"), entries[0].mean(0))
    near(
        ask("thumbnails", {"layer": 1, "view": view}, "X-Heads", "X-Rows", "X-Columns"), entries[1]
    )
    near(ask("sketch", {**place, "block": 1}, "X-Rows", "X-Columns"), entries[1, 2])
    entropy, distance, at_first, received = ask("readouts", place).view(4, -1)
    near(at_first, entries[1, 2, :, 0])
    near(received, entries[1, 2].sum(0))
    # Only rows that add up to 1 have an entropy and a mean distance.
    has_shares = view in ("weight", "without")
    assert entropy.isnan().all() != has_shares
    assert distance.isnan().all() != has_shares
    cell = client.get(address(first["id"], "cell", **place, query=11, key=4)).json()
    assert cell["weight"] == pytest.approx(float(entries[1, 2, 11, 4]), rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("view", ["moved", "toward"])
def test_steps_end_with_the_entry_of_the_view(client, first, written, view):
    fields = {"layer": 1, "head": 0, "query": 12, "count": 99}
    plain = client.get(address(first["id"], "steps", **fields)).json()
    steps = client.get(address(first["id"], "steps", **fields, view=view)).json()
    row = written[view][1, 0, 12]
    found = [(one["position"], one["entry"]) for one in steps["keys"]]
    assert [key for key, _ in found] == row[:13].abs().argsort(descending=True).tolist()
    torch.testing.assert_close(
        torch.tensor([entry for _, entry in found], dtype=torch.float64),
        row[[key for key, _ in found]],
        rtol=1e-4,
        atol=1e-6,
    )
    by_key = {one["position"]: one for one in plain["keys"]}
    for one in steps["keys"]:  # what comes before is the same
        assert one["weight"] == by_key[one["position"]]["weight"]


def test_a_view_that_cannot_be_had_is_refused_with_the_reason(client, reader, first, refused):
    views = {one["name"]: one["objection"] for one in reader.get(address("0", "views")).json()}
    assert views["weight"] is views["without"] is None
    assert "keep=regard.lens.norms(model)" in views["moved"]
    assert "no model" in views["toward"]
    answer = reader.get(address("0", "row", layer=0, head=0, query=3, view="moved"))
    assert views["moved"] in refused(answer, 422)
    assert reader.get(address("0", "row", layer=0, head=0, query=3, view="x")).status_code == 422
    body = {"changes": [{"kind": "off", "layer": 0, "head": 1}]}
    changed = client.post(address(first["id"], "changed"), json=body).json()["id"]
    views = {one["name"]: one["objection"] for one in client.get(address(changed, "views")).json()}
    assert "take the changes back" in views.pop("toward")
    assert set(views.values()) == {None}


def test_a_recording_with_norms_can_show_what_is_moved(ask, network, floats, written):
    model, tokenizer = network
    with torch.no_grad(), regard.record(model, keep=regard.lens.norms(model)) as recording:
        model(torch.tensor(tokenizer.encode(TEXT)))
    reader = ask(RecordingSubject(recording, title="kept"))
    answer = reader.get(address("0", "row", layer=1, head=1, query=10, view="moved"))
    near(floats(answer), written["moved"][1, 1, 10])


def test_a_model_whose_values_are_gated_says_so(network, monkeypatch):
    model, tokenizer = network
    subject = ModelSubject(model, tokenizer, title="a model", text=TEXT)
    run = subject.run(subject.about()["runs"][0])
    own = run.views._value
    gate = torch.linspace(1, 3, 5)  # as if each number of a value had a factor of its own
    monkeypatch.setattr(run.views, "_value", lambda layer: own(layer) * gate)
    why = {one["name"]: one["objection"] for one in run.describe_views("toward")}["toward"]
    assert why == "what stands between the values of h.0.attn and the logit is not one scale"


def test_a_report_of_numbers_has_the_weights_alone_and_one_with_the_model_every_view(
    recorded, subject
):
    why = (
        '"objection": "a report of numbers shows the weights; a live report and regard explore have'
    )
    pages = [page.replace('":"', '": "') for page in (report_html(recorded), live_html(subject))]
    assert [page.count(why) for page in pages] == [3, 0]
