"""The picture of a monitor: heads down, updates across."""

import numpy as np
import pytest
import torch

import regard
from regard.lens.monitor import AlarmWarning
from regard.nn import MultiHeadAttention


def trained():
    """Two layers whose largest scores grow tenfold at each reading."""
    layers = torch.nn.ModuleList(MultiHeadAttention(6, heads) for heads in (2, 3))
    for layer in layers:
        for weight in (layer.query.weight, layer.key.weight):
            torch.nn.init.constant_(weight, 0.1)
    alarms = [regard.lens.Alarm("max_logit", above=10), regard.lens.Alarm("entropy", below=-1)]
    monitor = regard.Monitor(layers, every=50, alarms=alarms)
    for number in range(0, 200, 50):
        with monitor.update(number):
            for layer in layers:
                layer(torch.ones(1, 5, 6))
        with torch.no_grad():
            layers[1].query.weight.mul_(10)
    return monitor


@pytest.fixture
def monitor():
    with pytest.warns(AlarmWarning):
        return trained()


def test_heads_updates_and_alarms(monitor):
    figure = monitor.plot("max_logit")
    axes, scale_axes = figure.axes
    (image,) = axes.images
    np.testing.assert_array_equal(image.get_array(), monitor.values("max_logit").T)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "50", "100", "150"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1", "0", "1", "2"]
    (marks,) = axes.collections
    assert sorted(map(tuple, marks.get_offsets().tolist())) == [(2, 2), (2, 3), (2, 4)]
    texts = [text.get_text() for text in axes.texts]
    assert texts == [
        "layer 0",
        "1",
        "max_logit of 5 heads, 4 readings",
        "○ alarm: max_logit above 10",
    ]
    assert {line.get_ydata()[0] for line in scale_axes.lines} == {10.0}
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_what_is_not_read_can_t_be_drawn(monitor):
    with pytest.raises(KeyError, match="'max_score' is not read; there is 'max_logit'"):
        monitor.plot("max_score")
    with pytest.raises(ValueError, match="no update was read yet"):
        regard.Monitor().plot()
