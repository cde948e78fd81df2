"""`regard doctor --measure`: that ratios are measured, and in what form they are sent."""

import json
from functools import partial

import pytest
import torch

from regard.cli import measure
from regard.cli.timing import Measured, interleaved

TINY = partial(
    measure.Sizes,
    heads=2,
    dim=8,
    length=67,
    cached=71,
    layers=1,
    vocabulary=13,
    tokens=3,
    product=17,
    copied=1009,
    seconds=0.0,
)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(measure, "Sizes", TINY)


class Clock:
    """A clock that tasks advance, one of them by more seconds each time."""

    def __init__(self):
        self.now, self.slow = 0.0, 2.0

    def __call__(self):
        return self.now

    def quick(self):
        self.now += 1.0

    def slower(self):
        self.now += self.slow
        self.slow += 1.0


def test_ratios_are_of_the_same_rounds():
    clock = Clock()
    tasks = {"slow": clock.slower, "quick": clock.quick}
    measured = interleaved(tasks, seconds_of_rounds=0.0, clock=clock)
    assert measured.rounds == {"slow": [4.0, 5.0, 6.0], "quick": [1.0, 1.0, 1.0]}  # after 2 and 3
    assert measured.seconds == {"slow": 5.0, "quick": 1.0}
    assert measured.ratio("slow", "quick") == (5.0, 4.5, 5.5)


def test_each_headline_is_the_first_task_over_the_second(monkeypatch):
    made = []

    def timed(tasks, **_):
        made.append([*tasks])
        return Measured({name: [float(3 - place)] * 2 for place, name in enumerate(tasks)})

    monkeypatch.setattr(measure, "interleaved", timed)
    found = list(measure.headlines(TINY()))
    assert [one.ratio.median for one in found] == [1.5] * 6
    with_torch = [["torch", "ours"]] * 3
    rest = [["module", "engine"], ["read", "forward"], ["weighted by key", "the weights"]]
    assert made == with_torch + rest


def test_peers_compute_the_same():
    query, (key, value) = torch.randn(1, 4, 1, 8), torch.randn(2, 1, 2, 71, 8)
    tasks = measure.one_query(query, key, value)
    torch.testing.assert_close(tasks["ours"](), tasks["torch"]())
    tasks = measure._generation(TINY())
    assert tasks["engine"]().equal(tasks["module"]())
    for make in (measure._forward, measure._forward_and_backward):
        tasks = make(TINY())
        torch.testing.assert_close(tasks["ours"](), tasks["torch"]())


def test_what_is_sent_as_json(regard, tiny):
    threads = torch.get_num_threads()
    done = regard("doctor", "--measure", "--json")
    assert (done.status, done.err) == (0, "")
    content = json.loads(done.out)
    assert [*content] == ["machine", "rates", "ratios", "seconds"]
    assert {"processor", "instructions", "regard", "torch", "threads"} <= {*content["machine"]}
    assert all(rate["value"] > 0 for rate in content["rates"])
    assert content["rates"][0]["name"] == "float32 product, 1 thread"
    assert len(content["ratios"]) == 6
    assert all(0 < one["low"] <= one["median"] <= one["high"] for one in content["ratios"])
    assert torch.get_num_threads() == threads


def test_what_is_sent_as_text_names_no_file(regard, tiny):
    done = regard("doctor", "--measure")
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines()[0].startswith("regard ")
    assert done.out.splitlines()[-1].startswith("measured in ")
    assert "/lib/" not in done.out
    assert "/site-packages" not in done.out
    assert max(map(len, done.out.splitlines())) <= 100


def test_without_the_library_torch_is_measured_alone(tiny, monkeypatch):
    monkeypatch.setattr(measure, "describe", lambda: None)
    assert measure.machine()["instructions"] == "torch's kernels alone"
    units = {rate.name: rate.unit for rate in measure.rates(TINY())}
    assert "memory copy" in units
    assert not [name for name in units if name.startswith("peak")]


def test_json_without_a_measurement_is_refused(misused):
    assert "give --measure too" in misused("doctor", "--json")
