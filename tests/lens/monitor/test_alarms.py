"""Bounds on what heads do: which head sets an alarm off, when, and who is notified."""

import math
import warnings

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


def test_a_bound_on_a_change_counts_from_each_head_s_own_first_readings():
    alarm = regard.lens.Alarm("max_logit", below=-2, baseline=2)
    rows = [(9, 0, 5), (7, 0, 5), (6, 0, 5), (5.9, 0, 5), (5, -3, 5), (9, 0, 0)]
    assert set_off(alarm, *rows) == [[], [], [], [(3, 0)], [(3, 1)], [(0, 0)]]
    lasting = regard.lens.Alarm("max_logit", above=2, baseline=1, readings=2)
    assert set_off(lasting, (1, 1, 1), (4, 4, 1), (4, 1, 1), (4, 4, 4)) == [[], [], [(3, 0)], []]


def test_nan_is_out_of_a_change_too_also_in_the_first_readings():
    alarm = regard.lens.Alarm("max_logit", above=2, baseline=2)
    assert set_off(alarm, (1, 1, math.nan), (1, 1, 1), (1, math.nan, 9)) == [
        [(0, 0)],
        [],
        [(3, 1), (0, 0)],  # the mean of the first two is no number
    ]


def test_a_healthy_model_with_a_head_at_rest_sets_off_a_bound_on_the_change_only_when_it_moves():
    """As of a pretrained model: one head rests on the first token, with an entropy near 0."""
    torch.manual_seed(2)
    layer = MultiHeadAttention(6, 3, mask=regard.causal())
    with torch.no_grad():
        layer.query.weight[:2] = layer.key.weight[:2] = 0.0
        layer.query.weight[0, 0], layer.key.weight[0, 1] = 30.0, 30.0
    x = torch.randn(4, 11, 6)
    x[..., 0], x[..., 1] = 1.0, 0.0
    x[:, 0, 1] = 1.0  # only the first token has the key that the first head asks for
    alarms = [
        regard.lens.Alarm("entropy", below=0.1),
        regard.lens.Alarm("entropy", below=-0.5, baseline=2),
        regard.lens.Alarm("first_token", above=0.3, baseline=2),
    ]
    monitor = regard.Monitor(layer, every=1, alarms=alarms)

    def update():
        with monitor.update():
            layer(x).sum().backward()

    with pytest.warns(AlarmWarning, match="update 0: entropy of layer 0, head 0 is .*, below 0.1"):
        [update() for _ in range(4)]
    assert [(alert.update, alert.alarm) for alert in monitor.alerts] == [(0, alarms[0])]
    with torch.no_grad():  # now the second head comes to rest as well
        layer.query.weight[2:4], layer.key.weight[2:4] = (
            layer.query.weight[:2],
            layer.key.weight[:2],
        )
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        update()
    assert len(shown) == 3  # one for each alarm
    assert {(a.update, a.head, a.alarm.baseline) for a in monitor.alerts[1:]} == {
        (4, 1, None),
        (4, 1, 2),
    }
    assert len(monitor.alerts) == 1 + 3
    change = monitor.alerts[-1]
    values = monitor.values("first_token")[:, 1]
    assert change.change == pytest.approx(float(values[4] - values[:2].mean()), abs=1e-12)
    assert f"a change of {change.change:+.4g}, above 0.3 from its first 2 readings" in str(change)


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
        ({"above": 1, "baseline": 0}, ValueError, "baseline must be at least 1, but is 0"),
        ({"below": 0.1, "baseline": 3}, ValueError, "no change must be within it"),
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
