"""A monitor's numbers in the trackers of other libraries, by stand-ins of what they document."""

import sys
import types

import pytest
import torch
from support.summary_writer import record_summaries

import regard
from regard._extras import install
from regard.integrations.tensorboard import TensorBoardWriter
from regard.integrations.trackio import TrackioWriter
from regard.integrations.wandb import WandbWriter
from regard.nn import MultiHeadAttention


def train(writer):
    layer = MultiHeadAttention(6, 2, mask=regard.causal())
    monitor = regard.Monitor(layer, every=10, writers=[writer])
    for _ in range(11):
        with monitor.update():
            layer(torch.randn(1, 5, 6)).sum().backward()
    return monitor


def scalars(monitor, row):
    """The numbers of one reading, by name."""
    values = {name: monitor.values(name)[row] for name in monitor.quantities}
    summaries = {"min": torch.amin, "mean": torch.mean, "max": torch.amax}
    return {
        f"attention/{name}/{key}": float(number)
        for name, heads in values.items()
        for key, number in {
            **{key: reduce(heads) for key, reduce in summaries.items()},
            **{f"0.{head}": heads[head] for head in range(2)},
        }.items()
    }


class Run:
    """A run of Weights & Biases or of Trackio: what the writers use of it."""

    def __init__(self):
        self.metrics, self.logged = [], []

    def define_metric(self, name, **options):
        self.metrics.append((name, options))

    def log(self, numbers, step=None):
        self.logged.append((step, numbers))


def test_weights_and_biases():
    run = Run()
    monitor = train(WandbWriter(run))
    axis = "attention/update"
    assert run.metrics == [(axis, {"hidden": True}), ("attention/*", {"step_metric": axis})]
    expected = [
        (None, {axis: update, **scalars(monitor, row)}) for row, update in ((0, 0), (1, 10))
    ]
    assert run.logged == expected


def test_trackio():
    run = Run()
    monitor = train(TrackioWriter(run))
    assert run.logged == [(0, scalars(monitor, 0)), (10, scalars(monitor, 1))]


@pytest.mark.parametrize("writer", [WandbWriter, TrackioWriter])
def test_an_argument_that_is_not_a_run_is_refused(writer):
    with pytest.raises(TypeError, match=r"run must be what .*\.init\(\) gives, but is str"):
        writer("project")


def test_tensorboard(tmp_path, monkeypatch):
    calls = record_summaries(monkeypatch)
    monkeypatch.setitem(sys.modules, "tensorboard", types.ModuleType("tensorboard"))
    monitor = train(TensorBoardWriter(tmp_path / "board"))
    first, *entries = calls
    assert first == (str(tmp_path / "board"), 0)
    for row, update in ((0, 0), (1, 10)):
        expected = [(name, number, update) for name, number in scalars(monitor, row).items()]
        own, entries = entries[: len(expected)], entries[len(expected) :]
        assert sorted(own) == sorted(expected)
        assert entries.pop(0) == "flush"
    assert entries == []


def test_tensorboard_is_named_where_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ModuleNotFoundError) as error:
        TensorBoardWriter(tmp_path)
    assert str(error.value) == f"this needs the library tensorboard: {install('trackers')}"
