"""Bounds on what heads do: which head sets an alarm off, when, and who is notified."""

import math

import pytest
import torch

import regard
from regard.lens.monitor import AlarmWarning, Alert
from regard.lens.monitor.alarms import alerts_of
from regard.lens.monitor.history import LayerPlace, UpdateReading
from regard.nn import MultiHeadAttention

PLACES = (LayerPlace("self", 3, "h.3.attn", 2, 2), LayerPlace("cross", 0, "x", 1, 1))


def set_off(alarm, *rows):
    """The heads that set an alarm off at each of some readings."""
    readings, alerts = [], []
    for number, row in enumerate(rows):
        values = {"max_logit": torch.tensor(row, dtype=torch.float64)}
        readings.append(UpdateReading(10 * number, PLACES, values))
        alerts.append([(a.layer, a.head) for a in alerts_of([alarm], readings)])
    return alerts


def test_a_head_sets_an_alarm_off_once_and_again_after_it_was_within():
    alarm = regard.lens.Alarm("max_logit", above=100)
    rows = [(1, 100, 1), (1, 101, 1), (102, 103, 1), (1, 1, 200), (101, 1, 1)]
    assert set_off(alarm, *rows) == [[], [(3, 1)], [(3, 0)], [(0, 0)], [(3, 0)]]


def test_an_alarm_may_need_several_readings_in_a_row():
    alarm = regard.lens.Alarm("max_logit", below=0.5, readings=3)
    rows = [(0, 0, 0), (0, 1, 0), (0, 0, 0), (0, 0, 1), (0, 0, 0)]
    assert set_off(alarm, *rows) == [[], [], [(3, 0), (0, 0)], [], [(3, 1)]]


@pytest.mark.parametrize("bound", [{"above": 1.0}, {"below": -1.0}])
def test_nan_is_out_of_every_bound_and_comes_first(bound):
    alarm = regard.lens.Alarm("max_logit", **bound)
    row = (5.0 if "above" in bound else -5.0, 0.0, math.nan)
    assert set_off(alarm, row) == [[(0, 0), (3, 0)]]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ValueError, "an alarm has one bound, but above=None and below=None"),
        ({"above": 1, "below": 0}, ValueError, "an alarm has one bound, but above=1 and below=0"),
        ({"above": math.nan}, TypeError, "a bound must be a number, but is nan"),
        ({"above": "100"}, TypeError, "a bound must be a number, but is '100'"),
        ({"above": 1, "readings": 0}, ValueError, "readings must be at least 1, but is 0"),
    ],
)
def test_alarms_are_checked(options, error, message):
    with pytest.raises(error, match=message):
        regard.lens.Alarm("max_logit", **options)


def test_an_alert_names_layer_head_value_bound_and_update():
    layer, received = MultiHeadAttention(6, 3, mask=regard.causal()), []
    with torch.no_grad():
        layer.key.weight.fill_(0.1)
        for head, weight in enumerate((0.1, 10.0, 20.0)):
            layer.query.weight[2 * head : 2 * head + 2] = weight
    alarms = [regard.lens.Alarm("max_logit", above=10), regard.lens.Alarm("entropy", above=100)]
    monitor = regard.Monitor(layer, every=2, alarms=alarms, on_alarm=received.append)

    def update():
        with monitor.update():
            layer(torch.ones(1, 5, 6)).sum().backward()

    with pytest.warns(AlarmWarning) as warnings:
        [update() for _ in range(3)]
    assert monitor.alerts == tuple(received)
    assert {(a.update, a.kind, a.layer, a.head) for a in received} == {
        (0, "self", 0, 1),
        (0, "self", 0, 2),
    }
    first, second = received
    assert first.value == float(monitor.values("max_logit")[0].max()) > second.value > 10
    text = f"update 0: max_logit of layer 0, head {first.head} is {first.value:.4g}, above 10"
    assert str(first) == text
    assert [str(w.message) for w in warnings] == [f"{text}; so is that of 1 more head"]


def test_an_alert_says_which_kind_of_attention_and_where():
    alarm = regard.lens.Alarm("entropy", below=0.1, readings=5)
    alert = Alert(alarm, 300, "cross", 2, 7, name="decoder.2.attn", value=0.01234)
    assert str(alert) == (
        "update 300: entropy of cross-attention layer 2, head 7 (decoder.2.attn) is 0.01234, "
        "below 0.1 for 5 readings"
    )
