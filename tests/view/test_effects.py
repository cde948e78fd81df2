"""Effects as figures and in notebooks: each number in its place, 0 in the middle of the colours."""

import io
import itertools

import numpy as np
import pytest
import torch

import regard
from regard.gpt import GPT, BPETokenizer, GPTConfig
from regard.lens import Effects
from regard.view.plot.colour import two_sided
from regard.view.plot.labels import inked


def effects_over_heads(values, **changed):
    values = torch.tensor(values, dtype=torch.float64)
    layers, heads = values.shape
    given = {
        "values": values,
        "unchanged": -0.25,
        "target": "log-probability of token 7 at position -1",
        "over": "heads",
        "method": "ablation",
        "axes": ("layer", "head"),
        "labels": (tuple(range(layers)), tuple(range(heads))),
        "places": tuple((layer, head) for layer in range(layers) for head in range(heads)),
    }
    return Effects(**given | changed)


def effects_over_keys(values, names, target="loss"):
    return Effects(
        values=torch.tensor(values, dtype=torch.float64),
        unchanged=-0.25,
        target=target,
        over="keys",
        method="ablation",
        axes=("keys",),
        labels=(tuple(names),),
        places=tuple((key, key + 1) for key in range(len(values))),
    )


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_each_head_has_its_number_and_a_colour_by_its_sign():
    effects = effects_over_heads([[-1.5, 0.0, 0.75], [0.031, -0.5, 1.0]])
    figure = effects.plot()
    (axes,) = figure.axes
    assert {"−1.5", "0", "0.75", "0.031", "−0.5", "1"} <= set(texts(axes))
    (image,) = axes.images
    assert image.norm(0.0) == 0.5
    assert (image.norm(-1.5), image.norm(1.5)) == (0, 1)
    np.testing.assert_array_equal(image.get_array(), effects.values.numpy())
    figure.savefig(io.BytesIO(), format="svg")


def test_the_title_names_the_number_and_says_what_is_approximate():
    effects = effects_over_heads([[1.0]], method="gradient")
    title = effects.plot().texts[0].get_text()
    assert "log-probability of token 7" in title
    assert "approximate" in title
    assert "−0.25" in title


@pytest.mark.parametrize("width", [1, 13])
@pytest.mark.parametrize("name", [" Paris", "W" * 24, "你好" * 7, "\n", "$x$"])
def test_a_title_lies_within_its_figure(name, width):
    target = f"log-probability of {name!r} at position -1"
    values = torch.zeros(2, width).tolist()
    for effects in (
        effects_over_heads(values, target=target, method="gradient"),
        effects_over_keys(values[0], list(map(str, range(width))), target=target),
    ):
        figure = effects.plot()
        (title,) = figure.texts
        shown = "".join(title.get_text().split())  # it may be broken within a long name
        assert "".join(inked(target).split()) in shown
        around, whole = title.get_window_extent(), figure.bbox
        assert whole.x0 < around.x0 < around.x1 < whole.x1
        assert figure.axes[0].get_tightbbox().y1 < around.y0 < around.y1 < whole.y1


def test_a_target_has_the_name_that_the_tokenizer_gives_it():
    tokenizer = BPETokenizer.train(["a cat, a cat"], vocab_size=259)
    model = GPT(GPTConfig(vocab_size=259, context=7, layers=2, heads=3, dim=6)).eval()
    ids = torch.tensor(tokenizer.encode("a cat"))
    for target in (regard.lens.LogProbability(ids[-1].item()), regard.lens.Logit(ids[0].item(), 1)):
        kind = "log-probability" if isinstance(target, regard.lens.LogProbability) else "logit"
        (name,) = tokenizer.tokens([target.token])
        measured = regard.lens.effects(model, ids, target, tokens=tokenizer)
        assert measured.target == f"{kind} of {name!r} at position {target.position}"
        assert regard.lens.effects(model, ids, target).target == str(target)


def test_each_key_has_a_bar_with_its_name():
    effects = effects_over_keys([0.5, -1.0, 0.0], ["0 The", "1  $cat", "2 \n"])
    figure = effects.plot()
    (axes,) = figure.axes
    assert [bar.get_width() for bar in axes.patches] == [0.5, -1.0, 0.0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0 The", "1 ␣$cat", "2 ↵"]
    assert axes.get_xlim() == pytest.approx((-1.05, 1.05))
    figure.savefig(io.BytesIO(), format="png")


def patched(values, over, names):
    """Effects of a made-up patch, of layers 0 … and, over both, heads 0 …"""
    values = torch.tensor(values, dtype=torch.float64)
    axes = {"positions": ("layer", "position"), "both": ("layer", "head", "position")}[over]
    sizes = [range(size) for size in values.shape]
    return Effects(
        values=values,
        unchanged=-5.5,
        target="preference",
        over=over,
        method="patching",
        axes=axes,
        labels=(*(tuple(size) for size in sizes[:-1]), tuple(names)),
        places=tuple(itertools.product(*sizes)),
        by="context of the clean run",
        other=6.12,
    )


def test_each_position_has_its_number_under_its_token():
    effects = patched(
        [[0.5, -1.0, 0.0], [0.25, 2.0, 0.125]], "positions", ["0 The", "1  $x", "2 s"]
    )
    figure = effects.plot()
    (axes,) = figure.axes
    np.testing.assert_array_equal(axes.images[0].get_array(), effects.values.numpy())
    assert [label.get_text() for label in axes.get_xticklabels()] == ["The", "␣$x", "s"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1"]
    assert {"0.5", "−1", "2", "0.12"} <= set(texts(axes))
    title = figure.texts[0].get_text().replace("\n", " ")
    assert "each layer at a position with the context of the clean run, which has 6.12" in title
    assert "as it is: −5.5" in title
    figure.savefig(io.BytesIO(), format="svg")


@pytest.mark.parametrize("heads", [pytest.param(3, marks=pytest.mark.thorough), 13])
def test_of_heads_at_positions_the_largest_have_a_row_each(heads):
    torch.manual_seed(0)
    values = torch.randn(3, heads, 29)
    values[1, 0, 4] = float("nan")
    effects = patched(values.tolist(), "both", [f"{n} t{n}" for n in range(29)])
    figure = effects.plot()
    (axes,) = figure.axes
    rows = [label.get_text() for label in axes.get_yticklabels()]
    flat = values.double().nan_to_num(0).abs().flatten(0, 1).amax(dim=-1)
    largest = sorted(flat.argsort(descending=True)[:24].tolist())
    assert rows == [f"{n // heads}·{n % heads}" for n in largest]
    exact = effects.values.flatten(0, 1)[largest].numpy()
    np.testing.assert_array_equal(axes.images[0].get_array().filled(np.nan), exact)
    assert ("the 24 largest heads" in figure.texts[0].get_text()) == (heads == 13)
    figure.savefig(io.BytesIO(), format="png")
    assert "patched with the context of the clean run, where it is 6.12" in effects._repr_html_()


@pytest.mark.parametrize("values", [[[0.0, 0.0]], [[float("nan"), 1.0]]])
def test_zeros_and_missing_heads_are_drawn(values):
    effects_over_heads(values).plot().savefig(io.BytesIO(), format="png")


def test_colours_grow_darker_on_both_sides_of_the_paper():
    colours = two_sided()(np.linspace(0, 1, 256))[:, :3]
    luminance = colours @ (0.2126, 0.7152, 0.0722)
    assert luminance[127:129].min() > 0.97
    assert (np.diff(luminance[:128]) > -0.005).all()
    assert (np.diff(luminance[128:]) < 0.005).all()
    assert colours[0, 2] > colours[0, 0]  # blue
    assert colours[-1, 0] > colours[-1, 2]  # orange


def test_a_notebook_shows_the_picture_and_what_it_is_of():
    html = effects_over_heads([[1.0, -1.0]], method="gradient")._repr_html_()
    assert "log-probability of token 7" in html
    assert "estimates, by gradient; check(n) measures the largest" in html
    assert 'src="data:image/png;base64,' in html
    assert "script" not in html


def test_effects_of_a_model_are_drawn():
    torch.manual_seed(0)
    layer = regard.nn.MultiHeadAttention(6, 2, mask=regard.causal())
    x = torch.randn(1, 5, 6)
    effects = regard.lens.effects(layer, {"x": x}, lambda y: y[:, -1, 0].detach(), over="keys")
    assert len(effects.plot().axes[0].patches) == 5
