"""Keeping a part of a run: some layers, heads and rows, and where they are kept."""

import math

import pytest
import torch
import torch.nn.functional as F
from support.caches import Attend, causal_prompt, close, exact
from support.recordings import unchecked
from torch import nn

import regard

B, H, L, D = 2, 5, 7, 3


class Model(nn.Module):
    def __init__(self, layers=4):
        super().__init__()
        self.layers = nn.ModuleList(Attend() for _ in range(layers))

    def forward(self, query, key, **options):
        for shift, layer in enumerate(self.layers):
            layer(query + shift, key, **options)


def recorded(**kept):
    model, (query, key) = Model(), torch.randn(2, B, H, L, D).unbind()
    with regard.record(model, **kept) as recording:
        model(query, key, is_causal=True)
    return recording, [exact(query + shift, key) for shift in range(4)]


@pytest.mark.parametrize(
    ("layers", "kept"),
    [
        (2, [2]),
        ([0, 3], [0, 3]),
        ((3, 1), [1, 3]),
        (range(1, 3), [1, 2]),
        (slice(2), [0, 1]),
        (slice(2, None), [2, 3]),
        (slice(0, None, 2), [0, 2]),
        (slice(1, 4, 2), [1, 3]),
        ([1, 99], [1]),
        (None, [0, 1, 2, 3]),
    ],
)
def test_layers(layers, kept):
    recording, weights = recorded(layers=layers)
    assert [layer.index for layer in recording.layers] == kept
    assert [layer.name for layer in recording.layers] == [f"layers.{n}" for n in kept]
    for pattern, number in zip(recording, kept, strict=True):
        close(pattern, weights[number])


def test_layers_that_are_not_there():
    recording, _ = recorded(layers=[99])
    assert len(recording) == 0
    assert recording.layers == ()


HEADS = [
    (0, [0]),
    (-1, [4]),
    ([4, 0], [4, 0]),
    ([1, -2], [1, 3]),
    (slice(2), [0, 1]),
    (slice(-2, None), [3, 4]),
    (slice(None, None, 2), [0, 2, 4]),
    (range(1, 4), [1, 2, 3]),
    (slice(None), [0, 1, 2, 3, 4]),
]


@pytest.mark.parametrize(("heads", "kept"), HEADS)
def test_heads(heads, kept):
    recording, weights = recorded(heads=heads)
    for layer, full in zip(recording.layers, weights, strict=True):
        assert list(layer.heads) == kept
        close(layer.pattern, full[:, kept])
    kept_bytes = recording[0].problem.query.untyped_storage().nbytes()
    assert kept_bytes == B * len(kept) * L * D * 4


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize("heads", [[0], [5, 0], [2, 3], slice(1, 4), [1, 1]])
def test_grouped_heads_bring_their_own_keys(groups, heads):
    query, key = torch.randn(B, 6, L, D), torch.randn(B, groups, L, D)
    weights = exact(query, key.repeat_interleave(6 // groups, 1))
    with regard.record(heads=heads) as recording:
        F.scaled_dot_product_attention(query, key, key, is_causal=True, enable_gqa=True)
    close(recording[0], weights[:, heads])


def test_heads_bring_all_that_is_their_own():
    query, key = torch.randn(2, B, H, L, D)
    options = {
        "alibi": 0.5 ** torch.arange(1, H + 1),
        "sink": torch.randn(H),
        "bias": torch.randn(H, L, L),
        "mask": regard.dense(torch.rand(B, H, L, L) < 0.8) & regard.causal(),
    }
    full = regard.Pattern(query, key, **options).dense()
    with regard.record(heads=[3, 1]) as recording:
        regard.attention(query, key, key, **options)
    torch.testing.assert_close(recording[0].dense(), full[:, [3, 1]], rtol=0, atol=1e-6)


def test_heads_with_intervals_of_their_own():
    query, key = torch.randn(2, B, H, L, D)
    mask = torch.arange(L) >= torch.arange(H)[:, None, None]
    full = torch.softmax((query @ key.mT * D**-0.5).masked_fill(~mask, -math.inf), -1)
    with regard.record(heads=[4, 2]) as recording:
        F.scaled_dot_product_attention(query, key, key, attn_mask=mask)
    assert recording[0].problem.rows.is_interval
    torch.testing.assert_close(recording[0].dense(), full[:, [4, 2]], rtol=0, atol=1e-6)


ROWS = [
    (0, [0]),
    (-1, [6]),
    ([0, 3], [0, 3]),
    ([3, 0, 3], [0, 3]),
    ([-1, 0], [0, 6]),
    (slice(2), [0, 1]),
    (slice(-2, None), [5, 6]),
    (slice(1, -1, 2), [1, 3, 5]),
    (slice(None, None, 3), [0, 3, 6]),
    (range(2, 5), [2, 3, 4]),
    ([99], []),
    (slice(0, 0), []),
]


@pytest.mark.parametrize(("rows", "kept"), ROWS)
@pytest.mark.parametrize("written", [False, True])
def test_rows(rows, kept, written):
    model, (query, key) = Model(1), torch.randn(2, B, H, L, D).unbind()
    mask = {"is_causal": True}
    if written:
        mask = {
            "attn_mask": torch.zeros(L, L).masked_fill(torch.ones(L, L).triu(1).bool(), -math.inf)
        }
    with regard.record(model, rows=rows) as recording:
        model(query, key, **mask)
    assert list(recording.layers[0].rows) == kept
    close(recording[0], exact(query, key)[..., kept, :])


@pytest.mark.parametrize("leading", [(), (H,), (2, B, H)])
def test_rows_of_other_leading_dimensions(leading):
    query, key = torch.randn(2, *leading, L, D)
    with regard.record(rows=[1, 5]) as recording:
        F.scaled_dot_product_attention(query, key, key, is_causal=True)
    close(recording[0], exact(query, key)[..., [1, 5], :])


@pytest.mark.parametrize("kind", ["bias", "gaps"])
def test_rows_of_masks_that_stay_dense(kind):
    query, key = torch.randn(2, B, H, L, D)
    mask = torch.randn(H, L, L) if kind == "bias" else torch.rand(H, L, L) < 0.6
    added = mask if kind == "bias" else torch.zeros(H, L, L).masked_fill(~mask, -math.inf)
    weights = torch.softmax(query @ key.mT * D**-0.5 + added, -1).nan_to_num(0)
    with regard.record(rows=[1, -1]) as recording:
        F.scaled_dot_product_attention(query, key, key, attn_mask=mask)
    torch.testing.assert_close(recording[0].dense(), weights[..., [1, 6], :], rtol=0, atol=1e-6)


def generated(rows, prompt=4, **kept):
    layer, (query, key) = Attend(), torch.randn(2, B, H, L, D).unbind()
    with regard.record(layer, rows=rows, **kept) as recording:
        causal_prompt(layer, query, key, prompt)
    (actual,) = recording.layers
    return actual, exact(query, key)


@pytest.mark.parametrize(
    ("rows", "kept"),
    [
        ([0, 5], [0, 5]),
        (slice(4, None), [4, 5, 6]),
        (slice(2, 6, 2), [2, 4]),
        (-1, [3, 4, 5, 6]),  # the last of each call
        (-2, [2]),  # only the prompt has two
        (slice(-1, None), [3, 4, 5, 6]),
        (slice(1, None, 2), [1, 3, 5]),
        ([99], []),
        (6, [6]),
    ],
)
def test_rows_are_counted_over_a_generation(rows, kept):
    layer, weights = generated(rows)
    assert list(layer.rows) == kept
    close(layer.pattern, weights[..., kept, :])


@pytest.mark.parametrize("offload", [None, "cpu"])
def test_layers_heads_and_rows_together(offload):
    layer, weights = generated([1, 5], heads=[4, 0], layers=0, offload=offload)
    assert list(layer.heads) == [4, 0]
    assert list(layer.rows) == [1, 5]
    close(layer.pattern, weights[:, [4, 0]][:, :, [1, 5]])


@pytest.mark.parametrize("heads", [None, [1]])
@pytest.mark.parametrize("rows", [None, [1, 2]])
def test_offloaded_tensors_are_copies(heads, rows):
    model, (query, key) = Model(1), torch.randn(2, B, H, L, D).unbind()
    query, key = query.clone(), key.clone()
    weights = exact(query, key)
    with regard.record(model, heads=heads, rows=rows, offload="cpu") as recording:
        model(query, key, is_causal=True)
    weights = weights if heads is None else weights[:, heads]
    weights = weights if rows is None else weights[..., rows, :]
    problem = recording[0].problem
    model_memory = {t.untyped_storage().data_ptr() for t in (query, key)}
    for kept in (problem.query, problem.key):
        assert kept.untyped_storage().data_ptr() not in model_memory
        assert kept.device.type == "cpu"
    query.zero_()
    key.zero_()
    close(recording[0], weights)


REFUSED = [
    ({"layers": -1}, ValueError, "layers=-1 counts from the end.*count from 0"),
    ({"layers": [0, -2]}, ValueError, r"layers=\[0, -2\] counts from the end"),
    ({"layers": slice(-2, None)}, ValueError, "layers=slice.*counts from the end"),
    ({"layers": "all"}, TypeError, "layers must be an integer, a slice or integers, but is 'all'"),
    ({"heads": "01"}, TypeError, "heads must be an integer, a slice or integers, but is '01'"),
    ({"rows": 1.5}, TypeError, "rows must be an integer, a slice or integers, but is 1.5"),
    ({"rows": True}, TypeError, "rows must be an integer, a slice or integers, but is True"),
    ({"heads": [0, False]}, TypeError, r"heads must be an integer.*but is \[0, False\]"),
    ({"heads": [0.0]}, TypeError, r"heads must be an integer.*but is \[0.0\]"),
    ({"rows": slice(0, 2.5)}, TypeError, "rows=slice.*must be a slice of integers"),
    ({"rows": slice(5, 0, -1)}, ValueError, "rows=slice.*must go forward.*at least 1"),
    ({"heads": slice(0, 3, 0)}, ValueError, "heads=slice.*must go forward"),
    ({"layers": object()}, TypeError, "layers must be an integer"),
    ({"offload": "cuda"}, ValueError, "offload may be 'cpu' or None, but is 'cuda'"),
    ({"offload": True}, ValueError, "offload may be 'cpu' or None, but is True"),
]


@pytest.mark.parametrize(("kept", "kind", "message"), REFUSED)
def test_invalid_selections_are_refused_before_the_model_runs(kept, kind, message):
    ran = False
    with pytest.raises(kind, match=message), unchecked(**kept):
        ran = True
    assert not ran


@pytest.mark.parametrize("heads", [5, -6, [0, 7]])
def test_heads_that_are_not_there(heads):
    with pytest.raises(IndexError, match=r"heads asks for .*there are only 0 to 4"):
        recorded(heads=heads)
