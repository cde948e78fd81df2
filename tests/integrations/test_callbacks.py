"""A monitor in the trainers of other libraries, driven by the events that they document."""

import importlib
import sys
import types

import pytest
import torch
from transformers import TrainerControl, TrainerState
from transformers.trainer_callback import CallbackHandler

import regard
from regard.integrations.transformers import MonitorCallback
from regard.intercept import is_observed
from regard.nn import MultiHeadAttention


@pytest.fixture
def layer():
    return MultiHeadAttention(6, 2, mask=regard.causal())


def passes(layer, count):
    """The passes of some batches, each another number of rows."""
    for rows in range(1, count + 1):
        layer(torch.full((rows, 5, 6), float(rows))).sum().backward()


def by_hand(layer, updates, count):
    monitor = regard.Monitor(layer, every=2)
    for number in updates:
        with monitor.update(number):
            passes(layer, count)
    return monitor


def test_transformers(layer):
    monitor = regard.Monitor(layer, every=2)
    handler = CallbackHandler([MonitorCallback(monitor)], layer, None, None, None)
    state, control = TrainerState(), TrainerControl()

    def event(name):
        getattr(handler, f"on_{name}")(None, state, control)

    event("train_begin")
    for _ in range(5):
        event("step_begin")
        passes(layer, 3)
        event("substep_end")
        state.global_step += 1
        event("step_end")
    event("step_begin")
    event("train_end")
    assert not is_observed()
    assert monitor.updates == (0, 2, 4)
    expected = by_hand(layer, range(5), 3)
    for name in monitor.quantities:
        assert torch.equal(monitor.values(name), expected.values(name))


@pytest.fixture
def lightning(monkeypatch):
    """The module of Lightning's callback, on a stand-in of its base class where it is missing."""
    try:
        importlib.import_module("lightning.pytorch")
    except ModuleNotFoundError:
        module = types.ModuleType("lightning.pytorch")
        module.Callback = type("Callback", (), {})
        monkeypatch.setitem(sys.modules, "lightning", types.ModuleType("lightning"))
        monkeypatch.setitem(sys.modules, "lightning.pytorch", module)
    name = "regard.integrations.lightning"
    yield importlib.import_module(name)
    del sys.modules[name]


class Trainer:
    """Calls a callback as Lightning's loop does: a batch at a time, a step every so many."""

    def __init__(self, callback, module, accumulate):
        self.global_step = 0
        self.callback, self.module, self.accumulate = callback, module, accumulate

    def event(self, name, *rest):
        getattr(self.callback, f"on_{name}", lambda *args: None)(self, self.module, *rest)

    def fit(self, batches):
        self.event("train_start")
        for number in range(batches):
            self.event("train_batch_start", "batch", number)
            rows = number % self.accumulate + 1
            self.module(torch.full((rows, 5, 6), float(rows))).sum().backward()
            if rows == self.accumulate:
                self.global_step += 1
            self.event("train_batch_end", "outputs", "batch", number)
            self.event("validation_start")
            with torch.no_grad():
                self.module.eval()(torch.randn(1, 5, 6))
                self.module.train()
            self.event("validation_end")
        self.event("train_end")


def test_lightning(layer, lightning):
    monitor = regard.Monitor(layer, every=2)
    trainer = Trainer(lightning.MonitorCallback(monitor), layer, accumulate=3)
    trainer.fit(5 * 3 + 2)
    assert not is_observed()
    assert monitor.updates == (0, 2, 4)
    expected = by_hand(layer, range(5), 3)
    for name in monitor.quantities:
        assert torch.equal(monitor.values(name), expected.values(name))


def test_lightning_leaves_an_update_that_failed(layer, lightning):
    callback = lightning.MonitorCallback(regard.Monitor(layer))
    trainer = Trainer(callback, layer, accumulate=1)
    trainer.event("train_batch_start", "batch", 0)
    assert is_observed()
    trainer.event("exception", KeyError())
    assert not is_observed()
