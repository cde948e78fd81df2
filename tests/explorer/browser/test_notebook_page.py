"""What a notebook shows, in a page as a notebook's is: the frame draws, alone and offline."""

import contextlib
import io

import pytest
import torch
from PIL import Image

import regard
from regard.nn import MultiHeadAttention

COLOURS = """(canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return new Set(new Uint32Array(data.buffer)).size;
}"""


@pytest.fixture
def cell(pages):
    """Put HTML into a page; give the page and what is in its frame."""
    with contextlib.ExitStack() as stack:
        complaints = []

        def go(html, **options):
            viewport = {"width": 1000, "height": 900}
            page = stack.enter_context(pages(viewport=viewport, offline=True, **options))
            blocked = "Blocked script execution in 'about:srcdoc'"  # in one test that is meant

            def console(message):
                if message.type == "error" and not message.text.startswith(blocked):
                    complaints.append(message.text)

            page.on("console", console)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.set_content(f"<!doctype html><body>{html}")
            return page, page.frame_locator("iframe")

        yield go
    assert complaints == []


@pytest.fixture(scope="module")
def pattern():
    query, key = 2 * torch.randn(2, 3, 19, 5, generator=torch.Generator().manual_seed(0))
    return regard.Pattern(query, key, mask=regard.causal())


def test_a_pattern_is_a_map_to_read_and_zoom(cell, written, pattern):
    page, frame = cell(pattern._repr_html_())
    canvas = frame.locator("#field canvas")
    canvas.wait_for()
    settled = frame.locator("html[data-settled=true]")
    frame.locator("select").select_option("2")
    settled.wait_for()
    assert canvas.evaluate(COLOURS) > 20
    box = canvas.bounding_box()
    compared = 0
    for down in range(30, 60, 3):
        page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + down / 100 * box["height"])
        settled.wait_for()
        text = frame.locator(".hint").text_content()
        query, key = (int(part.split()[1]) for part in text.split(":")[0].split(","))
        exact = float(pattern[2][query, key])
        if key <= query:
            assert text.endswith(f"weight {written(exact)}")
            compared += exact > 0.05  # where a hundredth of it would show
    assert compared

    def still():  # without a crosshair
        frame.locator("#tools button").hover()
        settled.wait_for()
        assert frame.locator(".hint").text_content().startswith("drag moves")
        return canvas.evaluate("(canvas) => canvas.toDataURL()")

    whole = still()
    page.mouse.dblclick(box["x"] + 0.3 * box["width"], box["y"] + 0.35 * box["height"])
    assert still() != whole
    frame.locator("button", has_text="Whole").click()
    assert still() == whole


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_heads_are_drawn_in_the_colours_preferred(cell, scheme):
    layers = [MultiHeadAttention(12, 4, mask=regard.causal()) for _ in range(3)]
    with regard.record() as recording, torch.no_grad():
        for layer in layers:
            layer(torch.randn(1, 23, 12))
    _, frame = cell(recording._repr_html_(), color_scheme=scheme)
    canvas = frame.locator("#field canvas")
    canvas.wait_for()
    assert frame.locator("html").get_attribute("data-theme") == scheme
    assert canvas.evaluate(COLOURS) > 20
    # The paper's lightness is the preferred one.
    red = canvas.evaluate("(c) => c.getContext('2d').getImageData(2, 2, 1, 1).data[0]")
    assert (red > 200) is (scheme == "light")


def test_without_scripts_the_still_picture_is_seen(cell, pattern):
    html = pattern._repr_html_()
    page, frame = cell(html.replace('sandbox="allow-scripts"', 'sandbox=""'))
    frame.locator("#numbers").wait_for(state="attached")
    shot = page.screenshot(clip=page.locator("img").bounding_box())
    with Image.open(io.BytesIO(shot)) as picture:
        colours = picture.convert("RGB").getcolors(2**20)
    assert len(colours) > 50  # what covered it would be even


def test_an_explorer_is_a_report_in_the_notebook_itself(cell, padded):
    explorer = regard.explore(padded.recording)
    explorer.stop()  # nothing is asked of it
    _, frame = cell(explorer._repr_html_())
    frame.locator("#view", has_text="Panel").click()
    frame.locator("#tokens .token").nth(2).click()
    frame.locator("#tab-panel-title", has_text="of query 2").wait_for()
    frame.locator("html[data-settled=true]").wait_for()
