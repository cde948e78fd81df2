"""Figures: what is drawn is what the pattern says, in every format, with any token."""

import io
import re

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from support.processes import run_script

import regard
from regard.nn import MultiHeadAttention
from regard.record import Recording
from regard.view.plot.colour import FEW, WeightNorm, ramp, scale_for, shades, usual
from regard.view.plot.labels import drawable, ticks

ODD = ["$x_1$", " cat", "\n", "a_b^c", "🦙", "\\frac", "%"]


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def head(length=7, width=None, **how):
    mask = regard.causal() if width is None else None
    return regard.Pattern(draw(length, 5), draw(width or length, 5, seed=1), mask=mask, **how)


def saved(figure, kind="png", **how):
    written = io.BytesIO()
    figure.savefig(written, format=kind, **how)
    return written.getvalue()


def pixels(figure):
    return np.array(Image.open(io.BytesIO(saved(figure))).convert("RGB"))


def named(figure, label):
    actual = [ax for ax in figure.findobj(mpl.axes.Axes) if ax.get_label() == label]
    assert len(actual) == 1
    return actual[0]


def texts(figure):
    return [text.get_text() for text in figure.findobj(mpl.text.Text) if text.get_text()]


@pytest.fixture
def recording():
    torch.manual_seed(0)
    layers = [MultiHeadAttention(6, 3, mask=regard.causal()) for _ in range(2)]
    with regard.record() as recording, torch.no_grad():
        x = torch.randn(2, 11, 6)
        for layer in layers:
            x = layer(x)
    return recording


@pytest.mark.parametrize("scale", ["log", "linear"])
def test_each_cell_has_the_colour_of_its_weight(scale):
    pattern = head(17, 13)
    figure = pattern.plot(scale=scale)
    ax = figure.axes[0]
    image = ax.images[0]
    np.testing.assert_array_equal(image.get_array(), pattern.image(17, 13).numpy())
    norm = WeightNorm(scale_for(scale, 1.0, exact=True))
    expected = shades()(norm(pattern.dense().numpy()), bytes=True)[..., :3]
    drawn = pixels(figure)
    for i in range(17):
        for j in range(13):
            x, y = ax.transData.transform((j - 0.4, i - 0.4))  # beside the number in the middle
            seen = drawn[drawn.shape[0] - 1 - int(y), int(x)]
            np.testing.assert_array_equal(seen, expected[i, j])


@pytest.mark.parametrize("scale", ["log", "linear"])
def test_signed_entries_have_colours_around_0_and_no_margins(scale):
    entries = head(13).weighted(key=7 * draw(13, seed=2))
    figure = entries.plot(scale=scale)
    image = figure.axes[0].images[0]
    np.testing.assert_array_equal(image.get_array(), entries.image(13, 13).numpy())
    most = float(entries.dense().abs().max())
    assert image.norm.vmin == -image.norm.vmax
    assert most <= image.norm.vmax <= 2.5 * most  # a round number, which may be above 1
    assert image.norm.vmax > 1
    red, _, blue, _ = np.moveaxis(image.cmap(image.norm(image.get_array())), -1, 0)
    signs = np.sign(np.where(np.abs(image.get_array()) < 0.03 * most, 0, image.get_array()))
    np.testing.assert_array_equal(np.sign(np.round(red - blue, 2))[signs != 0], signs[signs != 0])
    assert {"entropy", "received"}.isdisjoint(texts(figure))
    assert f"entry, {scale}" in texts(figure)


def test_what_is_moved_has_a_scale_of_its_own_and_what_keys_receive():
    entries = head(13).weighted(key=90 + draw(13, seed=2))
    figure = entries.plot()
    assert figure.axes[0].images[0].norm.vmin == 0
    assert figure.axes[0].images[0].norm.vmax >= float(entries.dense().max())
    assert "received" in texts(figure)
    assert "entropy" not in texts(figure)


def test_a_long_pattern_is_its_image_on_a_rounded_scale():
    pattern = head(1000)
    figure = pattern.plot(rows=100, columns=50)
    values = pattern.image(100, 50).numpy()
    image = figure.axes[0].images[0]
    np.testing.assert_array_equal(image.get_array(), values)
    assert image.norm.scale.high == scale_for("log", float(values.max()), exact=False).high
    assert "1000 queries × 1000 keys; a pixel is the mean over 10 × 20" in texts(figure)


def test_margins_are_entropy_and_received_on_the_axes_of_the_map():
    pattern = head(9)
    figure = pattern.plot()
    for label, values, axis in (
        ("entropy", pattern.entropy(), 0),
        ("received", pattern.received(), 1),
    ):
        margin = named(figure, label)
        corners = margin.collections[0].get_paths()[0].vertices
        for i, value in enumerate(values.tolist()):
            along = np.isclose(corners[:, 1 - axis], i - 0.5) | np.isclose(
                corners[:, 1 - axis], i + 0.5
            )
            assert np.isclose(corners[along, axis], value, atol=1e-5).any()
    ax = figure.axes[0]
    assert named(figure, "entropy").get_ylim() == ax.get_ylim()
    assert named(figure, "received").get_xlim() == ax.get_xlim()


def test_a_window_shows_the_queries_and_keys_in_its_caption():
    pattern = head(40)
    figure = pattern.plot([f"t{i}" for i in range(40)], queries=(20, 27), keys=(3, 14))
    ax = figure.axes[0]
    np.testing.assert_allclose(ax.images[0].get_array(), pattern[20:27, 3:14], atol=1e-7)
    assert [t.get_text() for t in ax.get_yticklabels()] == [f"t{i}" for i in range(20, 27)]
    assert [t.get_text() for t in ax.get_xticklabels()] == [f"t{i}" for i in range(3, 14)]
    assert ax.get_ylim() == (26.5, 19.5)


def test_where_tokens_do_not_fit_the_caption_counts_those_skipped():
    figure = head(300).plot([f"word{i}" for i in range(300)])
    labels = [t.get_text() for t in figure.axes[0].get_yticklabels()]
    assert labels[:3] == ["0 word0", "20 word20", "40 word40"]
    assert any("every 20th token is named" in text for text in texts(figure))


def test_the_ends_of_the_scale_stand_in_numbers():
    bar = named(head(5).plot(), "scale")
    assert [t.get_text() for t in bar.get_yticklabels()] == ["0", "0.5", "1"]
    bar = named(head(5).plot(scale="log"), "scale")
    labels = [t.get_text() for t in bar.get_yticklabels()]
    assert labels == ["≤ 0.0001", "0.001", "0.01", "0.1", "1"]


@pytest.mark.parametrize(
    ("length", "options", "kind"),
    [
        (FEW, {}, "linear"),
        (FEW + 1, {}, "log"),
        (FEW + 1, {"keys": (1, FEW + 1)}, "linear"),
        (FEW, {"scale": "log"}, "log"),
        (FEW + 1, {"scale": "linear"}, "linear"),
    ],
)
def test_few_keys_are_on_a_linear_scale_and_the_bar_says_so(length, options, kind):
    figure = head(length).plot(**options)
    assert figure.axes[0].images[0].norm.scale.kind == kind
    assert [t for t in texts(figure) if t.startswith("weight")] == [f"weight, {kind}"]


@pytest.mark.parametrize(
    ("lengths", "note"),
    [
        ([FEW], "each head on a linear scale"),
        ([FEW + 1], "each head on a logarithmic scale"),
        ([FEW, FEW + 1], f"linear (up to {FEW} keys) or logarithmic scale"),
    ],
)
def test_thumbnails_name_their_scale(lengths, note):
    with regard.record() as recording:
        for length in lengths:
            regard.attention(*draw(3, 1, 2, length, 4), mask=regard.causal())
    figure = recording.plot_heads(size=16)
    assert note in " ".join(texts(figure))
    kinds = [image.norm.scale.kind for image in figure.axes[0].images]
    assert kinds == [usual(length) for length in lengths for _ in range(2)]


def test_a_figure_of_heads_counts_the_tokens_behind_their_roles():
    def note(**options):
        with regard.record(**options) as recording:
            regard.attention(*draw(3, 1, 2, 7, 4), mask=regard.causal())
        return " ".join(texts(recording.plot_heads()))

    assert "induction not scored: the tokens were not recorded" in note()
    assert "induction over 3 queries, too few to tell" in note(tokens=list("xabcabc"))
    assert "induction of no query" in note(tokens=list("abcdefg"))


@pytest.mark.parametrize("kind", ["png", "svg", pytest.param("pdf", marks=pytest.mark.thorough)])
def test_any_token_is_drawn_in_any_format(kind):
    figures = [
        head(7).plot(ODD),
        regard.Pattern(draw(3, 7, 5), draw(3, 7, 5)).plot(ODD),
        regard.explain(draw(7, 5), draw(7, 5), draw(7, 5), mask=regard.causal()).plot(tokens=ODD),
    ]
    for figure in figures:
        assert "$x_1$" in texts(figure)
        assert len(saved(figure, kind)) > 1000


def test_an_svg_refers_to_nothing_outside(recording):
    steps = regard.explain(draw(4, 3), draw(4, 3), draw(4, 3))
    for figure in (head(7).plot(ODD), recording.plot_heads(), steps.plot()):
        svg = saved(figure, "svg").decode()
        addresses = re.findall(r"(?:href|src)=\"(?!#)([^\"]+)\"|url\((?!#)([^)]+)\)", svg)
        assert all(first.startswith("data:image/png;base64,") for first, _ in addresses)
        assert "<script" not in svg


def test_characters_that_no_font_has_are_written_as_numbers():
    assert drawable("a\U00016800b") == "a<U+16800>b"
    assert drawable("x" * 40, 10) == "xxxxxx…xxx"


def test_numbers_on_an_axis_are_round():
    assert ticks(None, (0, 1000), 4.0).positions[:3] == [0, 50, 100]


def test_heads_side_by_side_share_a_scale():
    pattern = regard.Pattern(draw(1, 5, 9, 4), draw(1, 5, 9, 4, seed=1))
    figure = pattern.plot()
    maps = [ax for ax in figure.axes if ax.images and ax.get_label() != "scale"]
    assert len(maps) == 5
    for h, ax in enumerate(maps):
        np.testing.assert_array_equal(ax.images[0].get_array(), pattern.image(9, 9)[0, h])
        assert ax.images[0].norm is maps[0].images[0].norm
    assert [f"head {h}" in texts(figure) for h in range(5)] == [True] * 5


def test_it_draws_into_given_axes_and_within_a_given_size():
    own = Figure(figsize=(9, 6))
    ax = own.add_axes((0.2, 0.3, 0.4, 0.5))
    assert head(6).plot(ax=ax) is own
    assert ax.images
    assert tuple(head(6).plot(figsize=(6.0, 5.0)).get_size_inches()) == (6, 5)
    with pytest.raises(ValueError, match="leaves no room"):
        head(6).plot(figsize=(1.0, 1.0))


def test_arguments_that_can_not_be_drawn_are_refused():
    many = regard.Pattern(draw(2, 3, 5, 4), draw(2, 3, 5, 4))
    with pytest.raises(ValueError, match=r"one sequence.*take one: pattern\[0\]\.plot"):
        many.plot()
    with pytest.raises(ValueError, match="ax has room for one head"):
        many[0].plot(ax=Figure().subplots())
    with pytest.raises(ValueError, match="3 tokens do not label 7 and 7 positions"):
        head(7).plot(["a", "b", "c"])
    with pytest.raises(TypeError, match="sequence of strings"):
        head(7).plot("letters")
    with pytest.raises(ValueError, match="is not a range within"):
        head(7).plot(queries=(3, 9))
    with pytest.raises(ValueError, match="nothing to draw"):
        regard.Pattern(torch.zeros(0, 4), torch.zeros(3, 4)).plot()


def test_nan_is_a_stain_and_no_failure():
    query = draw(6, 4)
    query[3] = torch.nan
    figure = regard.Pattern(query, draw(6, 4)).plot()
    colours = {tuple(colour) for colour in pixels(figure).reshape(-1, 3).tolist()}
    assert (0x4F, 0x8F, 0xC0) in colours
    assert (0x4F, 0x8F, 0xC0) not in set(ramp())


def test_a_recording_is_a_grid_of_named_thumbnails(recording):
    figure = recording.plot_heads(size=8)
    images = figure.axes[0].images
    assert len(images) == 6
    for image, expected in zip(
        images, [p.image(8, 8)[0, h] for p in recording for h in range(3)], strict=True
    ):
        np.testing.assert_array_equal(image.get_array(), expected)
    written = texts(figure)
    for scores in regard.lens.heads(recording):
        assert scores.role in written
        assert scores.score is None or scores.estimate in written
    assert any("sequence 0 of 2" in text for text in written)


def test_heads_that_cannot_be_scored_have_numbers_and_a_reason():
    layer = MultiHeadAttention(6, 2, source_dim=4)
    with regard.record() as recording, torch.no_grad():
        layer(torch.randn(1, 5, 6), torch.randn(1, 8, 4))
    written = texts(recording.plot_heads())
    assert "0" in written
    assert "1" in written
    assert any("not scored" in text for text in written)


def test_a_recording_refuses_layers_and_heads_out_of_range(recording):
    with pytest.raises(ValueError, match="size must be at least 1"):
        recording.plot_heads(size=0)
    with pytest.raises(ValueError, match="not recorded"):
        recording.of_kind("cross").plot_heads()
    with pytest.raises(ValueError, match="no layer was recorded"):
        Recording(list).plot_heads()


def test_steps_are_rows_of_bars_of_one_query():
    x = draw(2, 3, 8, 5)
    steps = regard.explain(x, x, x, mask=regard.causal() & regard.window(4))
    figure = steps.plot(5)
    assert "query 5 of 8; head [0, 0] of 2 × 3" in texts(figure)
    for name in ("query", "scores", "scaled", "weights", "context"):
        bars = [patch.get_height() for patch in named(figure, name).containers[0]]
        np.testing.assert_allclose(bars, getattr(steps, name)[0, 0, 5], atol=1e-6)
    masked = [patch.get_height() for patch in named(figure, "masked").containers[0]]
    np.testing.assert_allclose(masked, steps.masked[0, 0, 5].nan_to_num(neginf=0), atol=1e-6)
    assert [ax.get_label() for ax in figure.axes].count("softcapped") == 0


def test_long_steps_and_every_optional_step():
    x = draw(300, 5)
    more = {"softcap": 5.0, "bias": draw(300, 300), "dropout": 0.2}
    steps = regard.explain(x, x, x, mask=regard.causal(), **more)
    labels = [ax.get_label() for ax in steps.plot(200).axes]
    order = ["query", "scores", "scaled", "softcapped", "biased", "masked", "weights", "dropped"]
    assert labels == [*order, "context"]
    saved(steps.plot(0))


def test_steps_refuse_heads_out_of_range():
    x = draw(4, 3)
    steps = regard.explain(x, x, x)
    with pytest.raises(IndexError, match="query is 4, but must be below 4"):
        steps.plot(4)
    with pytest.raises(ValueError, match="2 tokens do not label 4 positions"):
        steps.plot(tokens=["a", "b"])


def test_settings_of_matplotlib_stay_and_do_not_matter():
    before = pixels(head(6).plot())
    with mpl.rc_context({"axes.grid": True, "text.color": "red", "axes.facecolor": "black"}):
        settings = dict(mpl.rcParams)
        figure = head(6).plot()
        assert dict(mpl.rcParams) == settings
    np.testing.assert_array_equal(pixels(figure), before)


def test_without_matplotlib_the_error_says_what_to_install_and_with_it_pyplot_stays_away():
    script = """
import sys
sys.modules["matplotlib"] = None
import torch, regard
from html import escape as html_of
from regard._extras import install
x = torch.eye(3)
with regard.record() as recording:
    regard.attention(x, x, x)
for draw in (regard.Pattern(x, x).plot, regard.explain(x, x, x).plot, recording.plot_heads):
    try:
        draw()
    except ImportError as error:
        assert install("plot") in str(error), error
    else:
        raise AssertionError(draw)
for shown in (regard.Pattern(x, x), regard.explain(x, x, x), recording):
    html = shown._repr_html_()
    assert "drawing needs matplotlib: " + html_of(install("plot")) in html, html
    assert type(shown).__name__ in html
del sys.modules["matplotlib"]
figure = regard.Pattern(x, x).plot()
assert figure._repr_png_().startswith(b"\\x89PNG")
assert "matplotlib.pyplot" not in sys.modules
"""
    run_script(script)
