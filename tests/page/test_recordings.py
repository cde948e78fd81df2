"""Recordings of many kinds as the explorer shows them: masked, partial, saved, with a bias."""

import json
import math

import pytest
import torch
from support.explorer import near

import regard
from regard.page import RecordingSubject
from regard.page.subjects import PageError
from regard.record import load

L, D = 13, 5


@pytest.fixture(scope="module")
def empty(make_recording):
    """A sequence in which queries 0 … 3 see nothing, and one with numbers that are none."""
    generator = torch.Generator().manual_seed(3)
    query, key = torch.randn(2, 2, 1, 7, D, generator=generator)
    visible = torch.ones(7, 7, dtype=torch.bool).tril().repeat(2, 1, 1, 1)
    visible[0, ..., :4] = False
    query[1, 0, 5, 2] = torch.nan
    return RecordingSubject(make_recording([(query, key)], [visible]), title="x")


def test_a_row_that_sees_nothing_is_zeros_and_can_be_answered(empty):
    run = empty.run("0")
    assert run.row(0, 0, 2).tolist() == [0.0] * 7
    steps, cell = run.steps(0, 0, 2), run.cell(0, 0, 2, 1)
    json.dumps([steps, cell, run.scores(0)], allow_nan=False)
    assert (steps["count"], steps["hidden"]) == (0, 7)
    assert [one["visible"] for one in steps["keys"]] == [False] * 7
    assert (cell["visible"], cell["weight"], cell["score"]) == (False, 0.0, None)
    assert cell["logsumexp"] is None


def test_numbers_that_are_not_finite_can_be_answered(empty):
    run = empty.run("1")
    assert run.row(0, 0, 5)[:6].isnan().all()
    json.dumps([run.steps(0, 0, 5), run.cell(0, 0, 5, 1), run.scores(0)], allow_nan=False)


@pytest.mark.parametrize("causal", [True, False])
def test_whether_it_is_causal(make_recording, causal):
    query, key = torch.randn(2, 1, 1, 7, D, generator=torch.Generator().manual_seed(4))
    masks = None if causal else [torch.ones(1, 1, 7, 7, dtype=torch.bool)]
    subject = RecordingSubject(make_recording([(query, key)], masks), title="x")
    assert subject.run("0").describe()["causal"] is causal


@pytest.mark.parametrize("first", [True, False])
def test_it_is_causal_where_all_layers_are(make_recording, first):
    given = torch.randn(2, 2, 1, 1, 7, D, generator=torch.Generator().manual_seed(4))
    both = torch.ones(1, 1, 7, 7, dtype=torch.bool)
    masks = [None, both] if first else [both, None]
    subject = RecordingSubject(make_recording(given, masks), title="x")
    assert subject.run("0").describe()["causal"] is False


def test_a_head_that_was_kept_is_called_by_its_number(make_recording, padded):
    kept = make_recording(padded.given, [padded.visible] * 2, heads=[1, 4], tokens=padded.names)
    subject = RecordingSubject(kept, title="x")
    run = subject.run("1")
    assert [layer["heads"] for layer in run.describe()["layers"]] == [[1, 4]] * 2
    for place, head in enumerate([1, 4]):
        near(run.row(1, place, 12), padded.weights[1][1, head, 12])
        near(run.thumbnails(0, L)[place], padded.weights[0][1, head])
        assert run.scores(0)["heads"][place]["head"] == place
        near(torch.tensor(run.steps(0, place, 11)["query"]), padded.given[0][0][1, head, 11])


def test_rows_that_were_left_out_can_not_be_shown(make_recording, padded):
    kept = make_recording(padded.given, [padded.visible] * 2, rows=slice(5), tokens=padded.names)
    with pytest.raises(PageError, match="record all rows"):
        RecordingSubject(kept, title="x")


def test_a_saved_recording_shows_the_same(recorded, padded, tmp_path):
    padded.recording.save(tmp_path / "kept")
    subject = RecordingSubject(load(tmp_path / "kept"), title="kept")
    for n in "01":
        run, before = subject.run(n), recorded.run(n)
        assert run.describe()["tokens"] == before.describe()["tokens"]
        assert torch.equal(run.row(1, 5, 12), before.row(1, 5, 12))
        assert run.steps(0, 2, 7) == before.steps(0, 2, 7)
        assert run.cell(0, 2, 7, 5) == before.cell(0, 2, 7, 5)


def test_everything_before_the_mask_is_in_the_scores():
    """A soft cap, a bias by distance and a sink."""
    length = 11
    generator = torch.Generator().manual_seed(5)
    query, key = 3 * torch.randn(2, 1, 2, length, D, generator=generator)
    slopes, sink = torch.tensor([0.3, 0.05]), torch.tensor([0.5, -1.0])
    options = {"mask": regard.causal(), "softcap": 4.0, "alibi": slopes, "sink": sink}
    with regard.record() as recording:
        regard.attention(query, key, key, **options)
    run = RecordingSubject(recording, title="x").run("0")
    head, at = 1, 8
    scaled = 4.0 * (query[0, head, at].double() @ key[0, head].double().mT / D**0.5 / 4.0).tanh()
    scaled -= slopes[head].double() * (at - torch.arange(length)).abs()
    scaled = scaled[: at + 1]
    total = torch.cat([scaled, sink[head].double()[None]]).logsumexp(0)
    weights = (scaled - total).exp()
    near(run.row(0, head, at)[: at + 1], weights)
    steps = run.steps(0, head, at)
    assert steps["logsumexp"] == pytest.approx(float(total), abs=1e-5)
    assert steps["steps"] == ["scaled", "softcapped", "biased", "masked"]
    assert steps["sink"]
    for one in steps["keys"]:
        assert one["weight"] == pytest.approx(float(weights[one["position"]]), abs=2e-6)
        assert one["scaled"] == pytest.approx(one["score"] * D**-0.5, abs=1e-5)
        assert one["softcapped"] == pytest.approx(4.0 * math.tanh(one["scaled"] / 4.0), abs=1e-5)
        assert one["masked"] == pytest.approx(float(scaled[one["position"]]), abs=1e-5)
    for key_at in range(at + 1):
        cell = run.cell(0, head, at, key_at)
        assert cell["score"] == pytest.approx(float(scaled[key_at]), abs=1e-5)
        assert cell["weight"] == pytest.approx(float(weights[key_at]), abs=2e-6)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: [(x[:, :, :5], x)], "record all rows"),
        (lambda x: [(x, x), (x[:, :, :5], x[:, :, :5])], "whole sequences"),
    ],
)
def test_a_recording_without_whole_sequences_is_refused(make_recording, build, message):
    given = build(torch.randn(1, 2, 7, D))
    masks = [torch.ones(1, 1, q.shape[2], k.shape[2], dtype=torch.bool) for q, k in given]
    with pytest.raises(PageError, match=message):
        RecordingSubject(make_recording(given, masks), title="x")
