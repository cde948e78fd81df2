"""Patterns of a recording by number, name and kind; their weights as tensors."""

import inspect

import pytest
import torch
from support.recordings import B, D, H, L, Model, mixed, recorded, two_layers

import regard
from regard.record import RecordError


def test_patterns_by_number_and_name():
    recording = two_layers()
    assert len(recording) == 2
    assert [p.shape for p in recording] == [(B, H, L, L)] * 2
    assert recording[-1] is recording[1] is recording["layer1"]
    assert recording[0] is recording["layer0"]
    assert recording[0] is not recording[1]
    assert tuple(recording) == (recording[0], recording[1])
    weights = recording[1][1, 2, 3:5, :4]
    assert torch.equal(weights, recording.dense()[1][1, 2, 3:5, :4])


@pytest.mark.parametrize(
    ("index", "kind", "message"),
    [
        (2, IndexError, "layer 2 was not recorded; there are 2"),
        (-3, IndexError, "layer -3 was not recorded"),
        ("layer9", KeyError, "no layer is named 'layer9'; there is 'layer0', 'layer1'"),
        (True, TypeError, "indexed by a layer's number or name, but got True"),
        (slice(2), TypeError, r"recording\[layer\]\[b, h, rows, columns\]"),
        ((0, 1), TypeError, "indexed by a layer's number or name"),
    ],
)
def test_indices_that_are_refused(index, kind, message):
    with pytest.raises(kind, match=message):
        inspect.unwrap(type(two_layers()).__getitem__)(two_layers(), index)


def test_a_name_that_attended_more_than_once():
    model = Model(("only",))
    with regard.record(model) as recording:
        for _ in range(2):
            model(inputs=torch.randn(1, 2, B, H, L, D), is_causal=True)
    with pytest.raises(KeyError, match="'only' attended 2 times"):
        recording["only"]
    assert recording[0] is not recording[1]


def test_kinds():
    recording = mixed()
    assert recording.kinds == ("self", "cross", "encoder")
    assert [layer.kind for layer in recording.layers] == ["encoder", "encoder", "self", "cross"]
    assert len(recording) == 1
    assert recording[0].shape == (B, H, L, L)
    assert [p.shape[-2:] for p in recording.of_kind("encoder")] == [(5, 5)] * 2
    assert [p.shape[-2:] for p in recording.of_kind("cross")] == [(L, 5)]
    assert len(recording.layers) == 4
    assert [layer.name for layer in recording.of_kind("cross").layers] == ["decoder.cross_attn"]
    assert recording["encoder.a"].shape[-1] == 5
    assert recording.of_kind("encoder").dense()[0].shape == (B, H, 5, 5)
    assert len(recording.dense()) == 1
    with pytest.raises(ValueError, match="kind='cross' was not recorded; there is 'self'"):
        two_layers().of_kind("cross")
    assert repr(recording) == "Recording(1 × self, 1 × cross, 2 × encoder)"


def test_without_self_attention_the_rest_is_numbered():
    model = Model(("crossattention",))
    with regard.record(model) as recording:
        model(inputs=torch.randn(1, 2, B, H, L, D))
    assert recording.kinds == ("cross",)
    assert recording[0].shape == (B, H, L, L)


def test_repr():
    assert repr(two_layers()) == "Recording(2 layers)"
    assert repr(recorded(torch.randn(1, 2, B, H, L, D))) == "Recording(1 layer)"


def test_dense_is_refused_above_a_size():
    recording = two_layers()
    size = 2 * B * H * L * L * 4
    assert len(recording.dense(limit=size)) == len(recording.dense(limit=None)) == 2
    with pytest.raises(ValueError, match="limit"):
        recording.dense(limit=size - 1)
    for pattern, weights in zip(recording, recording.dense(), strict=True):
        assert torch.equal(pattern.dense(), weights)


def test_free():
    recording = two_layers()
    recording.free()
    assert repr(recording) == "Recording(freed)"
    uses = [
        lambda: recording[0],
        lambda: recording["layer0"],
        lambda: len(recording),
        lambda: recording.layers,
        lambda: list(recording),
        lambda: recording.kinds,
        recording.dense,
        lambda: regard.lens.heads(recording),
        lambda: recording.read(regard.readouts.Entropy()),
        lambda: regard.lens.rollout(recording, query=-1),
    ]
    for use in uses:
        with pytest.raises(RecordError, match="this recording was freed"):
            use()
