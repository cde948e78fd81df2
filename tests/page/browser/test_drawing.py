"""What is drawn: named axes, one colour for a weight, sides that differ, four sizes of type."""

import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
import torch

import regard
from regard.page import RecordingSubject

pytestmark = pytest.mark.thorough


def exported(page, what):
    page.locator("#export summary").click()
    with page.expect_download() as actual:
        page.locator(f"[data-export={what}]").click()
    return ET.fromstring(actual.value.path().read_bytes())


def texts(svg):
    return [one for one in svg.iter() if one.tag.endswith("}text")]


def written_on(svg):
    return [one.text for one in texts(svg)]


@pytest.mark.parametrize("zoom", ["", "&z=4,2,4"])
def test_the_axes_are_named_on_the_map_and_in_exports(show, model, zoom):
    page = show(model, f"#l=1&h=1&q=9&k=3{zoom}")
    assert {"query ↓", "key →"} <= set(written_on(exported(page, "map-svg")))


def scale_of(page):
    return page.locator("#scale").get_attribute("aria-label")


def test_a_weight_keeps_its_colour_while_the_map_is_zoomed(show, settled, model):
    address = "#l=0&h=0&q=15&k=1"
    page = show(model, address)
    whole = scale_of(page)
    for _ in range(9):
        page.keyboard.press("+")
    settled(page)
    assert page.locator("#zoom-note").text_content().startswith("queries ")
    assert scale_of(page) == whole
    # However the page has come there.
    zoomed = page.evaluate("location.hash")
    assert "z=" in zoomed
    assert scale_of(show(model, zoomed)) == whole
    # Unless it is asked for.
    page.locator("#fit").click()
    settled(page)
    assert scale_of(page) != whole
    assert scale_of(show(model, page.evaluate("location.hash"))) == scale_of(page)


def test_weights_are_written_into_cells_that_have_the_room(show, written, model):
    run = model.run(model.about()["runs"][0])
    page = show(model, "#l=1&h=1&q=9&k=3&z=6,2,4")
    weights = [written(float(run.row(1, 1, q)[k])) for q in range(6, 10) for k in range(2, 6)]
    actual = written_on(exported(page, "map-svg"))
    assert [text for text in actual if text in weights] == weights
    page.keyboard.press("0")
    page.wait_for_selector("html[data-settled=true]")
    assert not {*weights} & {*written_on(exported(page, "map-svg"))} - {"0"}


@pytest.mark.parametrize("length", [31, 35, 37])
def test_the_queries_labels_do_not_touch(show, make_recording, length):
    given = torch.randn(1, 2, 1, 1, length, 5, generator=torch.Generator().manual_seed(0))
    recording = make_recording(given, tokens=[[f" gy{at}" for at in range(length)]])
    page = show(RecordingSubject(recording, title="labels"))
    labels = [one for one in texts(exported(page, "map-svg")) if one.get("text-anchor") == "end"]
    rows = [one for one in labels if "gy" in one.text]
    heights = sorted(float(one.get("y")) for one in rows)
    size = float(rows[0].get("font-size"))
    assert len(rows) >= length // 2
    assert min(b - a for a, b in pairwise(heights)) >= size + 1.5


def test_a_weight_is_written_with_two_or_three_figures(written):
    """By these tests as by the page: see tests/page/file/test_format.py."""
    figures = {0.5: "0.500", 0.0456: "0.046", 0.00234: "0.0023", 0.00098: "9.8·10⁻⁴", 1e-7: "10⁻⁷"}
    assert [written(value) for value in figures] == [*figures.values()]


def test_compared_sides_are_named(show, settled, model):
    page = show(model, "#l=1&h=1&q=9&k=3")
    names = page.locator(".side-name")
    assert not names.first.is_visible()
    page.locator("#compare").select_option("head")
    settled(page)
    assert names.all_text_contents() == ["left", "right"]
    assert all(name.is_visible() for name in names.all())
    assert page.locator(".map-column.active .side-name").text_content() == "right"
    page.locator("#map-first canvas").click(position={"x": 5, "y": 5})
    settled(page)
    assert page.locator(".map-column.active .side-name").text_content() == "left"


SIZES = """() => [...new Set([...document.querySelectorAll("body *")].filter((one) =>
  one.checkVisibility() && !one.closest("canvas, option, ruby")
  && [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
  .map((one) => parseFloat(getComputedStyle(one).fontSize)))].sort((a, b) => a - b)"""


@pytest.mark.parametrize("width", [390, 900, 1440])
@pytest.mark.parametrize("state", ["", "&b=readouts", "&x=head&o=1,2"])
def test_there_are_four_sizes_of_type(show, model, width, state):
    page = show(model, f"#l=1&h=1&q=9&k=3{state}", width=width)
    page.locator("#export summary").click()
    assert page.evaluate(SIZES) == [11, 12, 13.5, 17]


@pytest.mark.parametrize("width", [390, 1440])
def test_the_opening_has_four_sizes_of_type(show, model, width):
    page = show(model, "#p=opening", width=width)
    page.locator(".five button").first.click()
    assert len(page.evaluate(SIZES)) == 4


def test_scrollbars_are_in_the_pages_colours(show, model):
    page = show(model)
    assert page.locator("#grid").evaluate("(one) => getComputedStyle(one).scrollbarColor") != "auto"


def test_small_probabilities_fit_their_column(show, model):
    fits = """(figure) => {
      figure.lastChild.data = "8.8·10⁻⁴";
      return figure.scrollWidth <= figure.clientWidth;
    }"""
    assert show(model).locator("#predictions b").first.evaluate(fits)


def test_how_exact_a_report_is_stands_below_its_text(pages, settled, model, tmp_path):
    file = tmp_path / "report.html"
    regard.report(model, file)
    with pages(viewport={"width": 1440, "height": 900}, offline=True) as page:
        page.goto(f"{file.as_uri()}#p=panel")
        page.locator("#tokens .token").first.wait_for()
        settled(page)
        note = page.locator("#notes")
        assert "largest error" in note.text_content()
        for above in ("#tokens", "#legend", "#predictions"):
            box = page.locator(above).bounding_box()
            assert note.bounding_box()["y"] >= box["y"] + box["height"]
