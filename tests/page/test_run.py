"""A run gives the numbers of its patterns: against dense weights in float64, by the definition."""

import json
import math
from importlib import import_module
from threading import Event

import pytest
import torch
from support.explorer import Once, near

import regard
from regard.page import RecordingSubject
from regard.page._windows import Window
from regard.page._work import ReplacedError

N, H, L, D = 2, 6, 13, 5


def means(weights, rows, columns):
    """Pixels by the definition: each the mean of the weights that it covers, by area."""

    def shares(size, pixels):
        edges = [size * p / pixels for p in range(pixels + 1)]
        return torch.tensor(
            [
                [
                    max(0.0, min(edges[p + 1], k + 1) - max(edges[p], k)) * pixels / size
                    for k in range(size)
                ]
                for p in range(pixels)
            ],
            dtype=torch.float64,
        )

    return shares(weights.shape[-2], rows) @ weights @ shares(weights.shape[-1], columns).mT


@pytest.fixture(params=range(N))
def run(recorded, request):
    return recorded.run(str(request.param))


def test_each_sequence_has_its_own_tokens(recorded, padded):
    assert recorded.about()["runs"] == ["0", "1"]
    for n in range(N):
        described = recorded.run(str(n)).describe()
        assert [token["label"] for token in described["tokens"]] == padded.names[n]
        assert described["length"] == L
        assert described["title"] == f"a recording, sequence {n}"
        assert [layer["heads"] for layer in described["layers"]] == [list(range(H))] * 2
        assert [layer["name"] for layer in described["layers"]] == ["h.0", "h.1"]
        assert described["text"] is described["next"] is None
        assert described["values"] is False


@pytest.mark.parametrize("layer", range(2))
def test_rows_columns_and_cells(run, padded, layer):
    weights, masked = padded.weights[layer][run.sequence], padded.masked[layer][run.sequence]
    for head in range(H):
        for query in range(head % 3, L, 3):  # two heads have each of them
            near(run.row(layer, head, query), weights[head, query])
            near(run.column(layer, head, query), weights[head, :, query])
    for head, query, key in [(0, 12, 5), (5, 7, 7), (3, 4, 9), (2, 1, 0), (4, 12, 2)]:
        cell = run.cell(layer, head, query, key)
        score = masked[head, query, key]
        assert cell["visible"] == bool(score > -torch.inf)
        assert cell["weight"] == pytest.approx(float(weights[head, query, key]), abs=2e-6)
        if cell["visible"]:
            assert cell["score"] == pytest.approx(float(score), rel=1e-5, abs=1e-5)
            expected = float(masked[head, query].logsumexp(0))
            assert cell["logsumexp"] == pytest.approx(expected, rel=1e-5, abs=1e-5)
        else:
            assert cell["score"] is None


def test_means_over_heads_and_layers(run, padded):
    of_layer = [weights[run.sequence].mean(0) for weights in padded.weights]
    over_all = torch.stack(of_layer).mean(0)
    for at in range(run.sequence, L, N):
        near(run.row(1, "mean", at), of_layer[1][at])
        near(run.column(0, "mean", at), of_layer[0][:, at])
        near(run.row("mean", "mean", at), over_all[at])
        near(run.column("mean", "mean", at), over_all[:, at])


@pytest.mark.parametrize("place", [(1, "mean"), ("mean", "mean")], ids=["layer", "model"])
def test_a_mean_is_a_pattern_with_cells_readouts_and_maps(run, padded, place):
    n = run.sequence
    layers = padded.weights if place[0] == "mean" else [padded.weights[1]]
    mean = torch.stack([weights[n].mean(0) for weights in layers]).mean(0)
    for query, key in [(12, 5), (4, 9), (0, 0)]:
        cell = run.cell(*place, query, key)
        assert cell["weight"] == pytest.approx(float(mean[query, key]), abs=2e-6)
        assert cell["visible"] == bool(padded.visible[n, 0, query, key])
        assert cell["score"] is cell["logsumexp"] is None
    entropy, distance, first, received = run.readouts(*place)
    near(entropy, -torch.special.xlogy(mean, mean).sum(-1))
    near(distance, (mean * (torch.arange(L)[:, None] - torch.arange(L)).abs()).sum(-1))
    near(first, mean[:, 0])
    near(received, mean.sum(0))
    near(run.map(*place, Window((0, L), (0, L), 1), Event()), mean)
    cells = run.map(*place, Window((4, 12), (2, 8), 2), Event())
    near(cells, mean[4:12, 2:8].reshape(4, 2, 3, 2).mean((1, 3)))


@pytest.mark.parametrize("looks", [0, 1, 5])
def test_a_mean_can_be_cancelled_between_heads(recorded, looks):
    run = recorded.run("0")
    for ask in (
        lambda cancelled: run.map("mean", "mean", Window((0, L), (0, L), 1), cancelled),
        lambda cancelled: run.readouts("mean", "mean", cancelled),
    ):
        cancelled = Once(looks)
        with pytest.raises(ReplacedError):
            ask(cancelled)
        assert cancelled.looks == -1


def test_the_map_of_a_mean_is_computed_with_the_log_sum_exps_of_its_heads(recorded, monkeypatch):
    run, window = recorded.run("0"), Window((0, L), (0, L), 1)

    def average_window(*_):
        raise AssertionError("weights were computed once more")

    with monkeypatch.context() as patch:
        patch.setattr("regard.page._run.average_window", average_window)
        first = run.map(1, "mean", window, Event())
    for head in range(len(run.layers[1].heads)):
        assert run.head(1, head).has_logsumexp
    of_heads = [run.map(1, head, window, Event()) for head in range(len(run.layers[1].heads))]
    near(first, torch.stack(of_heads).mean(0))


def test_thumbnails_of_a_short_text_are_computed_with_the_log_sum_exps(recorded, monkeypatch):
    def finish(*_, **__):
        raise AssertionError("weights were computed once more")

    monkeypatch.setattr("regard.page._bands.PendingHead.finish", finish)
    run = recorded.run("0")
    pictures = run.thumbnails(1, 5)
    for head, picture in enumerate(pictures):
        assert run.head(1, head).has_logsumexp
        near(picture, run.head(1, head).image(5, 5))


def cut_means(monkeypatch, weights):
    """Have means read in bands of so many weights of all heads."""
    monkeypatch.setattr("regard.page._bands._BAND", weights)
    monkeypatch.setattr("regard.page._bands.fewest_rows", lambda: 1)


def test_the_readouts_of_a_long_mean_are_read_in_bands(make_recording, dense, monkeypatch):
    cut_means(monkeypatch, 3 * 61 * 7)  # rows that 61 is not a multiple of
    query, key = torch.randn(2, 1, 3, 61, D, generator=torch.Generator().manual_seed(8))
    run = RecordingSubject(make_recording([(query, key)]), title="x").run("0")
    mean = dense(query, key, torch.ones(61, 61, dtype=torch.bool).tril())[1][0].mean(0)
    entropy, _, first, received = run.readouts(0, "mean")
    near(entropy, -torch.special.xlogy(mean, mean).sum(-1))
    near(first, mean[:, 0])
    near(received, mean.sum(0))


def test_the_readouts_of_a_mean_report_progress_and_are_cached(recorded, monkeypatch):
    run, said = recorded.run("0"), []
    cut_means(monkeypatch, len(run.layers[1].heads) * 5 * L)
    stopped = Once(2)
    with pytest.raises(ReplacedError):
        run.readouts(1, "mean", stopped, lambda *_: None)
    along = run.readouts(1, "mean", None, lambda *progress: said.append(progress))
    heads = len(run.layers[1].heads)
    rows = [*range(L, heads * L + 1, L), *(heads * (L + read) for read in (5, 10, L))]
    assert said == [(row, 2 * heads * L) for row in rows]
    assert run.readouts(1, "mean", Once(0)) is along


@pytest.mark.parametrize(
    ("queries", "keys", "block"),
    [((0, 13), (0, 13), 1), ((0, 13), (0, 13), 4), ((3, 11), (2, 13), 2), ((12, 13), (0, 13), 16)],
)
def test_a_map_is_the_mean_of_each_cell(run, padded, queries, keys, block):
    window = padded.weights[1][run.sequence, 4, slice(*queries), slice(*keys)]
    expected = torch.stack(
        [
            torch.stack([part.mean() for part in band.split(block, dim=1)])
            for band in window.split(block)
        ]
    )
    near(run.map(1, 4, Window(queries, keys, block), Event()), expected)


@pytest.mark.parametrize("place", [(1, 4), (0, "mean"), ("mean", "mean")])
@pytest.mark.parametrize("block", [1, 2, 4, 8, 16, 2**20])
def test_a_sketch_is_of_the_query_in_the_middle_of_each_block(run, padded, place, block):
    layer, head = place
    weights = torch.stack([of_layer[run.sequence] for of_layer in padded.weights])
    weights = weights.mean(0) if layer == "mean" else weights[layer]
    weights = weights.mean(0) if head == "mean" else weights[head]
    middles = [min(L - 1, first + block // 2) for first in range(0, L, block)]
    means = [part.mean(-1) for part in weights[middles].split(block, dim=-1)]
    near(run.sketch(*place, block), torch.stack(means, dim=-1))
    with pytest.raises(ReplacedError):
        run.sketch(*place, block, Once(0))


@pytest.mark.parametrize("size", [1, 7, 13, 64])
def test_thumbnails_are_the_mean_of_each_pixel(run, padded, size):
    pictures = run.thumbnails(0, size)
    side = min(size, L)
    assert pictures.shape == (H, side, side)
    near(pictures, means(padded.weights[0][run.sequence], side, side))


def test_readouts(run, padded):
    for layer, head in [(0, 0), (1, 5)]:
        weights = padded.weights[layer][run.sequence, head]
        entropy, distance, first, received = run.readouts(layer, head)
        near(entropy, -torch.special.xlogy(weights, weights).sum(-1))
        away = (torch.arange(L)[:, None] - torch.arange(L)).abs()
        near(distance, (weights * away).sum(-1))
        near(first, weights[:, 0])
        near(received, weights.sum(0))


@pytest.mark.parametrize("place", [(0, "mean"), ("mean", "mean")])
def test_the_mean_of_one_head_is_read_as_that_head(make_recording, monkeypatch, place):
    """All rows of a mean are computed for its entropy, which of a long head takes minutes."""
    query, key = torch.randn(2, 1, 1, 17, D, generator=torch.Generator().manual_seed(9))
    run = RecordingSubject(make_recording([(query, key)]), title="x").run("0")
    monkeypatch.setattr("regard.page._run.MeanPattern", None)
    assert torch.equal(run.readouts(*place), run.readouts(0, 0))


def test_repeats_are_not_read_without_repeated_tokens(make_recording, monkeypatch):
    """As those of a recording without names: it would take minutes at 100,000 positions."""
    query, key = torch.randn(2, 1, 2, 19, D, generator=torch.Generator().manual_seed(9))
    run = RecordingSubject(make_recording([(query, key)]), title="x").run("0")
    monkeypatch.setattr(import_module("regard.lens.naming.tallies"), "ControlledRepeats", None)
    assert [one["induction"] for one in run.scores(0)["heads"]] == [None, None]


def test_scores_are_those_of_the_recording(make_recording, padded):
    """One sequence's, not the mean over the batch that the recording gives."""
    subject = RecordingSubject(padded.recording, title="x")
    for n in range(N):
        given = [(query[n : n + 1], key[n : n + 1]) for query, key in padded.given]
        masks = [padded.visible[n : n + 1]] * 2
        alone = regard.lens.heads(
            make_recording(given, masks, tokens=[padded.names[n]]), progress=False
        )
        run = subject.run(str(n))
        for layer in range(2):
            scored = run.scores(layer)
            assert scored["layer"] == layer
            for actual, expected in zip(scored["heads"], alone[layer * H :][:H], strict=True):
                assert actual["head"] == expected.head
                assert actual["role"] == expected.role
                assert actual["meaning"]
                for name in (
                    "previous_token",
                    "first_token",
                    "current_token",
                    "entropy",
                    "distance",
                ):
                    assert actual[name] == pytest.approx(getattr(expected, name), abs=1e-6)
                assert actual["induction"] == expected.induction is None  # no token repeats


@pytest.mark.parametrize("query", [12, 9, 4, 0])
def test_steps_add_up_to_the_weights(run, padded, query):
    n, layer, head = run.sequence, 1, 3
    weights, masked = padded.weights[layer][n, head, query], padded.masked[layer][n, head, query]
    steps = run.steps(layer, head, query)
    count = int(padded.visible[n, 0, query].sum())
    assert steps["count"] == count
    assert steps["hidden"] == L - count
    assert steps["scale"] == pytest.approx(D**-0.5)
    near(torch.tensor(steps["query"]), padded.given[layer][0][n, head, query])
    seen = [one["position"] for one in steps["keys"] if one["visible"]]
    assert seen == weights.argsort(descending=True)[:count].tolist()
    for one in steps["keys"]:
        if not one["visible"]:
            continue
        key = padded.given[layer][1][n, head // 2, one["position"]]
        near(torch.tensor(one["key"]), key)
        assert one["scaled"] == pytest.approx(float(masked[one["position"]]), abs=1e-5)
        assert one["score"] == pytest.approx(one["scaled"] * D**0.5, abs=1e-4)
        assert one["weight"] == pytest.approx(float(weights[one["position"]]), abs=2e-6)
        assert one["weight"] == pytest.approx(math.exp(one["scaled"] - steps["logsumexp"]), 1e-4)
        assert one["value"] is None
    assert steps["rest"]["count"] == 0
    assert steps["context"] is None
    json.dumps(steps, allow_nan=False)


def test_steps_of_a_long_row_keep_the_strongest(make_recording, dense):
    length = 61
    generator = torch.Generator().manual_seed(2)
    query, key = torch.randn(2, 1, 1, length, D, generator=generator)
    run = RecordingSubject(make_recording([(query, key)]), title="x").run("0")
    visible = torch.ones(length, length, dtype=torch.bool).tril()
    weights = dense(query, key, visible)[1][0, 0, 53]
    steps = run.steps(0, 0, 53)
    assert len(steps["keys"]) == 24
    top = weights.topk(24)
    assert [one["position"] for one in steps["keys"]] == top.indices.tolist()
    assert steps["rest"]["count"] == 54 - 24
    assert steps["rest"]["weight"] == pytest.approx(1 - float(top.values.sum()), abs=1e-5)
    assert steps["hidden"] == 7
    assert run.describe()["tokens"][7] == {"text": "7", "label": "7"}
    assert run.describe()["causal"] is True


def test_every_key_of_a_query_can_be_reached(make_recording, dense):
    """Page by page: the visible ones by weight, then those that the mask hides; or one by name."""
    length, query_at = 61, 53
    query, key = torch.randn(2, 1, 1, length, D, generator=torch.Generator().manual_seed(2))
    run = RecordingSubject(make_recording([(query, key)]), title="x").run("0")
    masked, weights = dense(query, key, torch.ones(length, length, dtype=torch.bool).tril())
    weights, masked = weights[0, 0, query_at], masked[0, 0, query_at]
    dots = query[0, 0, query_at].double() @ key[0, 0].double().T
    order = weights[: query_at + 1].argsort(descending=True).tolist()
    seen = []
    while len(seen) < query_at + 1:
        steps = run.steps(0, 0, query_at, first=len(seen), count=13)
        assert [one["rank"] for one in steps["keys"]] == list(
            range(len(seen), min(len(seen) + 13, query_at + 1))
        )
        seen += steps["keys"]
        assert steps["rest"]["count"] == query_at + 1 - len(seen)
        shown = sum(one["weight"] for one in seen)
        assert steps["rest"]["weight"] == pytest.approx(1 - shown, abs=1e-5)
    assert [one["position"] for one in seen] == order
    hidden = run.steps(0, 0, query_at, first=query_at + 1)["keys"]
    assert [one["position"] for one in hidden] == list(range(query_at + 1, length))
    for one in [*seen, *hidden]:
        at = one["position"]
        assert one["visible"] == (at <= query_at)
        assert one["score"] == pytest.approx(float(dots[at]), abs=1e-5)
        assert one["weight"] == pytest.approx(float(weights[at]), abs=2e-6)
        expected = float(masked[at]) if at <= query_at else None
        assert one["masked"] == (
            expected if expected is None else pytest.approx(expected, abs=1e-5)
        )
        assert run.steps(0, 0, query_at, picked=at)["picked"] == one


def test_the_scores_of_a_layer_at_once_are_those_of_its_heads(recorded, monkeypatch):
    at_once = recorded.run("0").scores(1)
    monkeypatch.setattr("regard.page._run._AT_ONCE", 0)
    run = recorded.run("0")
    run._scores.clear()
    for of_layer, alone in zip(at_once["heads"], run.scores(1)["heads"], strict=True):
        assert of_layer.keys() == alone.keys()
        for name, number in alone.items():
            # torch rounds the exponential of a number by its place in the tensor.
            rounded = isinstance(number, float)
            assert of_layer[name] == (pytest.approx(number, rel=1e-6) if rounded else number), name
