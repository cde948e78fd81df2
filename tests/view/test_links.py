"""Links as tables and figures: each number in its place."""

import io

import pytest
import torch

from regard.gpt._link_effects import LinkChange, LinkEffects
from regard.lens import SpanValues, SpanWeights

LAYERS, HEADS = 2, 3


@pytest.fixture
def effects():
    """Nine links of one kind and five of another; of the first, 0.2 looks and 1.1 is needed."""
    same = ("name",) * 9 + ("rhyme",) * 5, (*range(9), *range(5))

    def values(*shape, **places):
        numbers = torch.zeros(14, *shape, dtype=torch.float64)
        for place, number in places.items():
            numbers[(slice(0, 9), *map(int, place[1:]))] = number
        return SpanValues(numbers, *same)

    none = SpanValues(torch.full((14, LAYERS, HEADS), torch.nan, dtype=torch.float64), *same)
    weights = SpanWeights(
        spans=values(LAYERS, HEADS, _02=0.5, _11=0.25),
        decoys=values(LAYERS, HEADS, _02=0.125),
        controls=none,
        keys=(((1, 2),),) * 14,
        layers=(0, 1),
        heads=(0, 1, 2),
    )
    change = LinkChange(
        unchanged=values(),
        heads=values(LAYERS, HEADS, _02=-0.25, _11=-1.5),
        layers=values(LAYERS, _1=-1.75),
        model=values(_=-3.0),
    )
    return LinkEffects(
        weights=weights, correct=values(_=1.0), log_probability=change, log_odds=change
    )


def test_a_line_has_the_head_that_looks_most_beside_the_one_that_is_needed(effects):
    heading, names, rhymes, *about = repr(effects).splitlines()
    line = (
        "name  9  1.00  0.2  0.50 ± 0.00  0.12  –  −0.25  1.1  −1.50 ± 0.00  0.25  1  −1.75  −3.00"
    )
    assert names.split() == line.split()
    assert rhymes.split() == ["rhyme", "5", "0.00", "too", "few", "spans"]
    columns = "kind links right looks most weight decoys control Δ needed most Δ weight layer Δ"
    assert " ".join(heading.split()) == f"{columns} all heads Δ"
    assert "may not look at the deciding word" in " ".join(about)
    assert max(map(len, about)) <= 100
    assert "<td" in effects._repr_html_()
    assert "14 links in 9 texts" in effects._repr_html_()


def test_weights_alone_have_a_line_a_kind(effects):
    _, names, rhymes, *_ = repr(effects.weights).splitlines()
    assert " ".join(names.split()) == "name 9 0.125 0.2 0.50 ± 0.00 0.12 –"
    assert " ".join(rhymes.split()) == "rhyme 5 0.000 too few spans"
    assert "too few spans" in effects.weights._repr_html_()


def test_a_panel_has_a_dot_for_each_head(effects):
    figure = effects.plot()
    first, second = figure.axes
    dots = first.collections[0].get_offsets().tolist()
    assert dots[2] == [0.5, -0.25]
    assert dots[4] == [0.25, -1.5]
    assert len(dots) == LAYERS * HEADS
    assert [text.get_text() for text in first.texts] == ["0.2", "1.1", "name, 9 links"]
    assert second.texts[-1].get_text() == "rhyme, 5 links"
    figure.savefig(io.BytesIO(), format="svg")
    (only,) = effects.plot(["rhyme"]).axes
    assert only.texts[-1].get_text() == "rhyme, 5 links"
    with pytest.raises(
        ValueError, match="kinds names 'rime', but the links are of 'name', 'rhyme'"
    ):
        effects.plot(["rime"])
