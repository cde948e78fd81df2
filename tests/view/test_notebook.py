"""What a notebook shows: self-contained, escaped, small, and never an exception."""

from html.parser import HTMLParser

import pytest
import torch

import regard
from regard.nn import MultiHeadAttention
from regard.record import Recording
from regard.view import notebook
from regard.view.notebook import LARGEST


class Page(HTMLParser):
    """Collects elements, attributes and text, and checks that elements are closed."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.sources, self.text, self.open = [], [], "", []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        self.sources += [value for name, value in attrs if name in {"src", "href"}]
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def shown(thing):
    html = thing._repr_html_()
    page = Page(html)
    assert "script" not in page.elements
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    assert len(html) < 300_000
    return page


def record(layers, *shape):
    torch.manual_seed(0)
    with regard.record() as recording, torch.no_grad():
        for layer in layers:
            layer(torch.randn(*shape))
    return recording


def test_a_pattern_shows_its_shape_and_a_picture():
    x = torch.randn(2, 11, 7, 5)
    page = shown(regard.Pattern(x, x))
    assert len(page.sources) == 1
    for text in ("B=2, H=11, L=7, S=7", "8 of 11 heads are shown", "sequence 0 of 2"):
        assert text in page.text
    assert "L=7, S=7" in shown(regard.Pattern(x[0, 0], x[0, 0])).text
    assert "1 of" not in shown(regard.Pattern(x[0, 0], x[0, 0])).text


def test_a_long_pattern_is_drawn_from_a_part_of_its_queries(monkeypatch):
    monkeypatch.setattr(notebook, "_WEIGHTS", 2**16)
    seen = []
    monkeypatch.setattr(
        notebook, "_thinned", lambda *given: seen.append(thinned(*given)) or seen[-1]
    )
    x = torch.randn(3, 2000, 5)
    for mask in (regard.causal(), regard.dense(torch.ones(2000, 2000).tril().bool())):
        pattern = regard.Pattern(x, x, mask=mask)
        shown(pattern)
        part = seen[-1]
        assert part.shape == (3, 16, 2000)
        rows = torch.linspace(0, 1999, 16).round().long()
        torch.testing.assert_close(part.dense(), pattern[:, rows, :])


thinned = notebook._thinned


def test_steps_show_a_table_and_a_picture():
    x = torch.randn(3, 7, 5)
    page = shown(regard.explain(x, x, x, mask=regard.causal()))
    assert len(page.sources) == 1
    assert "scores3 × 7 × 7query · key" in page.text


def test_a_recording_shows_heads_and_layers():
    page = shown(record([MultiHeadAttention(6, 2, mask=regard.causal())] * 3, 1, 5, 6))
    assert len(page.sources) == 1
    assert page.elements.count("tr") == 4
    assert "3 × self" in page.text


@pytest.mark.thorough
def test_a_large_picture_gets_fewer_dots(monkeypatch):
    layers = [MultiHeadAttention(48, 6)] * 6
    recording = record(layers, 1, 64, 48)
    (whole,) = shown(recording).sources
    assert len(whole) <= LARGEST + 100
    monkeypatch.setattr(notebook, "LARGEST", 40_000)
    (small,) = shown(recording).sources
    assert len(small) < len(whole)


def test_freed_and_empty_objects_show_a_note():
    recording = record([MultiHeadAttention(6, 2)], 1, 5, 6)
    recording.free()
    assert "this recording was freed" in shown(recording).text
    assert "0 attentions: none" in shown(Recording(list)).text
    page = shown(regard.Pattern(torch.zeros(2, 0, 3), torch.zeros(2, 4, 3)))
    assert "nothing to draw" in page.text
    query = torch.randn(1, 2, 5, 3)
    with regard.record() as recording:
        regard.attention(query, query, query)
    query.zero_()  # a recording stands on the model's own tensors
    page = shown(recording)
    assert "written to after they were recorded" in page.text
    assert "Recording(1 layer)" in page.text


def test_text_is_escaped(monkeypatch):
    class Odd(regard.Pattern):
        def __repr__(self):
            return "<script>alert(1)</script>"

    def fails(_):
        raise RuntimeError("<b>&</b>")

    monkeypatch.setattr(notebook, "_draw_pattern", fails)
    page = shown(Odd(torch.eye(2), torch.eye(2)))
    assert "<script>alert(1)</script>" in page.text
    assert "no picture: <b>&</b>" in page.text


@pytest.mark.parametrize(
    "dtype",
    [pytest.param(torch.float16, marks=pytest.mark.thorough), torch.bfloat16, torch.float64],
)
def test_any_dtype_is_shown(dtype):
    x = torch.randn(3, 6, 4).to(dtype)
    assert "no picture" not in shown(regard.Pattern(x, x)).text
    assert "no picture" not in shown(regard.explain(x, x, x)).text


def test_scores_of_heads_are_a_table():
    heads = regard.lens.heads(record([MultiHeadAttention(10, 5, mask=regard.causal())], 1, 7, 10))
    page = shown(heads)
    assert page.elements.count("tr") == 1 + 5
    assert "Heads 5, by layer" in page.text
    for name, value in [(heads[3].role, heads[3].entropy), ("0·3", heads[3].first_token)]:
        assert name in page.text
        assert f"{value:.3g}" in page.text
    assert "–" in page.text  # tokens are not known, so there is no induction


def test_of_many_heads_the_first_are_listed():
    layers = [MultiHeadAttention(26, 13) for _ in range(5)]
    page = shown(regard.lens.heads(record(layers, 1, 3, 26)))
    assert page.elements.count("tr") == 1 + 64
    assert "… 1 more: heads.frame()" in page.text


def test_readings_are_a_table_of_their_ranges():
    layers = [MultiHeadAttention(10, 5), MultiHeadAttention(10, 2)]
    recording = record(layers, 1, 7, 10)
    readings = recording.read(regard.readouts.Entropy(), regard.readouts.TopK(3))
    page = shown(readings)
    assert page.elements.count("tr") == 1 + 3
    for name in ("entropy", "top_weights", "top_positions"):
        assert name in page.text
        numbers = torch.cat([part.flatten().double() for part in readings[name].parts])
        for value in (numbers.min(), numbers.mean(), numbers.max()):
            assert f"{float(value):.3g}" in page.text
    assert "layer × batch × head × query" in page.text  # the layers differ in heads
    alike = record([MultiHeadAttention(10, 5)], 1, 7, 10).read(regard.readouts.Received())
    assert "layer 1 × batch 1 × head 5 × key 7" in shown(alike).text
    assert "least" in shown(Recording(list).read()).text
