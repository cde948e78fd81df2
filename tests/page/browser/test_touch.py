"""Fingers on the map and the grid, files dropped on the page, and its address handed on."""

import pytest
import torch

from regard.page import RecordingSubject
from regard.page.subjects import CHARACTERS

pytestmark = pytest.mark.thorough


class Fingers:
    """Touches as the browser hears them from a screen."""

    def __init__(self, page):
        self.session = page.context.new_cdp_session(page)

    def __call__(self, kind, *points):
        touches = [{"x": x, "y": y, "id": k} for k, (x, y) in enumerate(points)]
        self.session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touches})

    def drag(self, *paths):
        """Lay a finger at the start of each path, and move them to its end."""
        self("touchStart", *(start for start, _ in paths))
        for step in range(1, 6):
            self(
                "touchMove",
                *((a + (c - a) * step / 5, b + (d - b) * step / 5) for (a, b), (c, d) in paths),
            )
        self("touchEnd")


@pytest.fixture(scope="module")
def recorded(make_recording):
    query, key = torch.randn(2, 1, 1, 2048, 4, generator=torch.Generator().manual_seed(0))
    return RecordingSubject(make_recording([(query, key)]), title="recorded")


@pytest.fixture
def touched(show, recorded):
    return show(recorded, has_touch=True)


def middle(page, selector):
    box = page.locator(selector).bounding_box()
    return box["x"] + 0.45 * box["width"], box["y"] + 0.4 * box["height"]


def test_a_pinch_zooms_the_map_and_a_finger_moves_it(touched, settled):
    page, fingers = touched, Fingers(touched)

    def note():
        return settled(page).locator("#zoom-note").text_content()

    x, y = middle(page, "#map-first canvas")
    whole = page.locator("#zoom-note").text_content()
    assert "all 2 048" in whole
    # On the whole, a finger takes the crosshair along.
    fingers.drag(((x - 40, y + 60), (x - 60, y + 90)))
    assert note() == whole
    fingers.drag(((x - 20, y), (x - 120, y)), ((x + 20, y), (x + 120, y)))
    closer = note()
    assert closer.startswith("queries ")
    fingers.drag(((x, y), (x + 60, y + 40)))
    moved = note()
    assert moved != closer
    # A tap chooses what lies there.
    page.touchscreen.tap(x, y)
    assert settled(page).evaluate("/q=\\d+&k=\\d+/.test(location.hash)")
    fingers.drag(((x - 120, y), (x - 10, y)), ((x + 120, y), (x + 10, y)))
    assert "all 2 048" in note()


def test_a_tap_takes_a_token_and_a_head_and_a_pinch_makes_the_heads_small(show, settled, model):
    page = show(model, "#l=1&h=1", has_touch=True)
    page.locator("#tokens .token[data-at='4']").tap()
    title = settled(page).locator("#tab-panel-title")
    assert title.text_content().startswith("of query 4")
    page.locator("#grid .cell").nth(2).tap()
    settled(page)
    assert "layer 0, head 2" in title.text_content()
    x, y = middle(page, "#grid")
    fingers = Fingers(page)
    fingers.drag(((x - 80, y), (x - 20, y)), ((x + 80, y), (x + 20, y)))
    assert settled(page).locator("#grid.small").count() == 1
    fingers.drag(((x - 20, y), (x - 80, y)), ((x + 20, y), (x + 80, y)))
    assert settled(page).locator("#grid.small").count() == 0
    # The page itself was not zoomed.
    assert page.evaluate("visualViewport.scale") == 1


DROP = """([target, name, content]) => {
  const files = new DataTransfer();
  const bytes = typeof content === "string" ? content : new Uint8Array(content);
  files.items.add(new File([bytes], name, { type: "text/plain" }));
  const at = document.querySelector(target);
  const say = (kind) => at.dispatchEvent(
    new DragEvent(kind, { dataTransfer: files, bubbles: true, cancelable: true }));
  const taken = !say("dragover");
  const marked = document.documentElement.classList.contains("dropping");
  say("drop");
  return [taken, marked];
}"""


def test_a_file_is_dropped_anywhere_on_the_page(show, settled, model):
    page = show(model)
    text = "The cat sat\non the mat."
    assert page.evaluate(DROP, ["#map-panel", "notes.txt", text]) == [True, True]
    address = "new URLSearchParams(location.hash.slice(1)).get"
    assert settled(page).evaluate(f"{address}('t')") == text
    assert not page.locator("#entry").is_visible()
    # With two texts, on the side that it is dropped on.
    page.locator("#compare").select_option("text")
    settled(page)
    page.evaluate(DROP, ["#map-second", "other.txt", "the other\r\nfile\rends"])
    assert settled(page).evaluate(f"{address}('t2')") == "the other\nfile\nends"
    assert page.locator("#tokens .token").first.text_content() == "The"
    # What is no text, or too long, is refused in a sentence.
    for name, content, message in [
        ("x.png", "a\0b", "“x.png” is not a text file."),
        ("x.txt", "x" * (4 * CHARACTERS + 1), f"“x.txt” has {4 * CHARACTERS + 1:,} bytes; at most"),
        ("x.txt", [*"été".encode("latin-1")], "“x.txt” is not UTF-8 text; convert it first"),
        ("x.txt", "", "“x.txt” is empty."),
    ]:
        page.evaluate(DROP, ["#tokens", name, content])
        actual = settled(page).locator("#problem span").text_content()
        assert actual.startswith(message.replace(",", " "))
    assert page.locator("#tokens .token").first.text_content() == "The"


def test_a_file_that_is_dropped_on_a_recording_is_refused(show, settled, recorded):
    page = show(recorded)
    assert page.evaluate(DROP, ["#tokens", "notes.txt", "x"]) == [True, False]
    assert "takes no other text" in settled(page).locator("#problem span").text_content()


def test_the_link_is_copied_and_that_is_said(show, model):
    page = show(model, "#l=1&h=2&q=7&k=3", permissions=["clipboard-read", "clipboard-write"])
    page.locator("#average [value='layer']").click()
    page.locator("#link").click()
    page.locator("#link-note", has_text="Link copied. The address holds the text").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == page.url
    assert "q=7&k=3" in copied
    assert "a=layer" in copied
    page.keyboard.press("Escape")
    page.locator("#link-message").wait_for(state="hidden")


def test_a_link_that_may_not_be_copied_stands_there_to_be_taken(show, model):
    page = show(model, "#l=1&h=2&q=7")
    page.evaluate(
        """() => {
          navigator.clipboard.writeText = () => Promise.reject(new Error("no"));
          document.execCommand = () => false;
        }"""
    )
    page.locator("#link").click()
    page.locator("#link-note", has_text="does not allow copying").wait_for()
    field = page.get_by_label("The address of this page")
    assert field.input_value() == page.url
    assert field.evaluate("(one) => one.selectionEnd - one.selectionStart") == len(page.url)


def test_a_site_that_frames_the_page_is_shown_nothing(pages, running, model):
    """Neither by its name nor by its number, nor one on this machine."""
    explorer = running(model)
    html = f'<iframe src="{explorer.url}"></iframe>'
    with pages(viewport={"width": 1440, "height": 950}) as page:
        for site in ("http://evil.example/", "http://203.0.113.7/", "http://127.0.0.1:9/"):
            page.route(site, lambda route: route.fulfill(body=html, content_type="text/html"))
            page.goto(site)
            page.wait_for_function("() => frames.length === 1")
            inner = page.frames[1]
            inner.wait_for_load_state()
            assert inner.locator("#tokens, #page").count() == 0
            assert explorer.url not in inner.url
