"""Readouts of all layers, labelled."""

import inspect

import pytest
import torch
import torch.nn.functional as F
from support.own_readout import SquaredWeights
from support.recordings import B, D, H, L, mixed, recorded, two_layers

import regard
from regard.pattern.readouts import Readout


def test_readouts_of_all_layers():
    recording = two_layers()
    readings = recording.read(
        regard.readouts.Entropy(),
        regard.readouts.TopK(2),
        regard.readouts.Mass(0),
        regard.readouts.Mass([1, 2]),
        regard.readouts.Received(),
        regard.readouts.Offsets(3),
        regard.readouts.Image(4, 3),
        regard.readouts.Max(),
        regard.readouts.Distance(),
        progress=False,
    )
    axes = {
        "entropy": ("query",),
        "top_weights": ("query", "rank"),
        "top_positions": ("query", "rank"),
        "mass": ("query",),
        "mass_2": ("query",),
        "received": ("key",),
        "offsets": ("offset",),
        "image": ("row", "column"),
        "max": ("query",),
        "distance": ("query",),
    }
    assert list(readings) == list(axes)
    for name, own in axes.items():
        assert readings[name].name == name
        assert readings[name].axes == ("layer", "batch", "head", *own)
        assert readings[name].values.ndim == len(readings[name].axes)
    for layer in range(2):
        pattern = recording[layer]
        assert torch.equal(readings["entropy"].values[layer], pattern.entropy())
        assert torch.equal(readings["top_positions"].values[layer], pattern.topk(2).positions)
        assert torch.equal(readings["mass"].values[layer], pattern.mass(0))
        assert torch.equal(readings["mass_2"].values[layer], pattern.mass([1, 2]))
        assert torch.equal(readings["image"].values[layer], pattern.image(4, 3))
    with pytest.raises(KeyError, match=r"no readout is named 'entropie'; there is \['entropy'"):
        readings["entropie"]
    text = repr(readings["image"])
    assert text == f"Reading(image: layer 2 × batch {B} × head {H} × row 4 × column 3)"
    assert text in repr(readings)


def test_labels_are_the_numbers_of_selected_heads_rows_and_layers():
    recording = recorded(torch.randn(4, 2, B, H, L, D), layers=[1, 3], heads=[2, 0], rows=[1, -1])
    reading = recording.read(regard.readouts.TopK(2))["top_weights"]
    frame = reading.frame()
    assert list(frame.columns) == ["layer", "batch", "head", "query", "rank", "top_weights"]
    assert len(frame) == reading.values.numel()
    assert sorted(frame["layer"].unique()) == [1, 3]
    assert list(frame["head"].unique()) == [2, 0]
    assert list(frame["query"].unique()) == [1, 6]
    for _, row in frame.iterrows():
        place = recording["layer" + str(int(row["layer"]))]
        head, query = [2, 0].index(row["head"]), [1, 6].index(row["query"])
        weights = place.topk(2).weights[int(row["batch"]), head, query]
        assert row["top_weights"] == float(weights[int(row["rank"])])


def test_layers_of_several_shapes():
    recording = recorded([torch.randn(2, B, H, L, D), torch.randn(2, B, H, 4, D)])
    reading = recording.read(regard.readouts.Entropy())["entropy"]
    with pytest.raises(ValueError, match=r"entropy differs in shape.*take parts or frame"):
        _ = reading.values
    assert [part.shape for part in reading.parts] == [(B, H, L), (B, H, 4)]
    assert len(reading.frame()) == B * H * (L + 4)


class LastKey(Readout):
    """A readout of one's own: the weight on the last key."""

    def begin(self, sizes):
        return sizes.zeros(sizes.queries)

    def add(self, state, block):
        if block.columns.stop == L:
            state[block.heads, block.rows] = block.weights[..., -1].double()

    def finish(self, state, sizes):
        return sizes.restore(state)


class Number(LastKey):
    def finish(self, state, sizes):
        return float(state.sum())


def test_readouts_of_ones_own():
    recording = two_layers(causal=False)
    reading = recording.read(SquaredWeights(3))["squared_weights"]
    assert reading.axes == ("layer", "batch", "head", "query")
    torch.testing.assert_close(reading.values[1], (recording[1].dense() ** 3).sum(-1))
    reading = recording.read(LastKey())["last_key"]
    assert reading.axes == ("layer", "batch", "head", "axis_2")
    actual, weights = reading.values[1], recording[1].dense()[..., -1]
    torch.testing.assert_close(actual, weights, rtol=0, atol=1e-6)
    with pytest.raises(TypeError, match="the readout number gives float, but only tensors"):
        _ = recording.read(Number())["number"]
    with pytest.raises(TypeError, match="is not a readout"):
        inspect.unwrap(type(recording).read)(recording, regard.readouts.Entropy)


def test_readouts_of_patterns_without_a_batch():
    with regard.record(heads=[2, 1]) as recording:
        F.scaled_dot_product_attention(*torch.randn(3, H, L, D))
    reading = recording.read(regard.readouts.Entropy())["entropy"]
    assert reading.axes == ("layer", "head", "query")
    assert reading.frame()["head"].tolist() == [2] * L + [1] * L


def test_all_weights_in_long_form():
    recording = recorded(torch.randn(2, 2, B, H, L, D), heads=[2, 0], rows=[1, -1])
    weights = recording.weights()
    assert weights.axes == ("layer", "batch", "head", "query", "key")
    assert torch.equal(weights.values, torch.stack(recording.dense()))
    frame = weights.frame().set_index([*weights.axes])["weight"]
    assert frame[1, 0, 2, 6, 3] == float(recording[1][0, 0, 1, 3])
    with pytest.raises(ValueError, match=r"the weights of these 2 layers take .* above the limit"):
        recording.weights(limit=2 * B * 2 * 2 * L * 4 - 1)
    with pytest.raises(ValueError, match="nothing was recorded; run"), regard.record() as nothing:
        nothing.weights()


def test_readouts_of_one_kind():
    recording = mixed()
    assert recording.of_kind("encoder").read(regard.readouts.Entropy())["entropy"].values.shape == (
        2,
        B,
        H,
        5,
    )
    assert recording.read(regard.readouts.Entropy())["entropy"].values.shape == (1, B, H, L)
    assert recording.of_kind("cross").read(regard.readouts.Received())["received"].values.shape == (
        1,
        B,
        H,
        5,
    )


def test_progress_is_shown_on_stderr_and_only_on_request(capsys, monkeypatch):
    recording = two_layers()
    recording.read(regard.readouts.Entropy())
    recording.read(regard.readouts.Entropy(), progress=False)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    recording.read(regard.readouts.Entropy(), progress=True)
    regard.lens.heads(recording, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "reading layers" in err


@pytest.mark.thorough  # which installs pyarrow
def test_a_reading_in_arrow():
    pa = pytest.importorskip("pyarrow")
    weights = recorded(torch.randn(2, 2, B, H, L, D)).weights()
    table = pa.table(weights)
    assert table.column_names == [*weights.axes, "weight"]
    assert table["weight"].to_pylist() == weights.frame()["weight"].tolist()
