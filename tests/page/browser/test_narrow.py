"""On a phone: one column, nothing on top of anything else, and a map that fingers use."""

import contextlib

import pytest

import regard

pytestmark = pytest.mark.thorough

SECTIONS = ["header", "#text-panel", "#map-panel", "#heads-panel", "#tab-panel"]
# What stands on something else of the same parent, though neither is meant to float.
OVERLAPS = """() => {
  const seen = (one) => one.checkVisibility() && !one.closest(".menu > div, .unseen, canvas")
    && getComputedStyle(one).position === "static";
  const name = (one) => one.id || one.className || one.tagName;
  const parents = "body, header, header nav, main, main > section, .head, .row, .title, #maps, "
    + "#sidebar, .walk, #head-card";
  const found = [];
  for (const parent of document.querySelectorAll(parents))
    for (const [k, a] of [...parent.children].entries())
      for (const b of [...parent.children].slice(k + 1)) {
        if (!seen(a) || !seen(b)) continue;
        const [x, y] = [a.getBoundingClientRect(), b.getBoundingClientRect()];
        const across = Math.min(x.right, y.right) - Math.max(x.left, y.left);
        const down = Math.min(x.bottom, y.bottom) - Math.max(x.top, y.top);
        if (across > 1 && down > 1) found.push([name(a), name(b)]);
      }
  return found;
}"""
# What is not seen whole: past the edge of the screen, unless within something that scrolls.
OUTSIDE = """() => [...document.querySelectorAll("body *")].filter((one) => {
  const scrolled = ".keys, .tokens, .unseen, #predictions, #examples";
  if (!one.checkVisibility() || one.closest(scrolled)) return false;
  const { left, right, width } = one.getBoundingClientRect();
  return width && (left < -0.5 || right > innerWidth + 0.5);
}).map((one) => one.id || one.className || one.tagName)"""


@pytest.fixture
def phone(show, model, pages, settled, tmp_path):
    """Open the live page, or a report, on a phone."""
    with contextlib.ExitStack() as stack:

        def go(what, width, hash="#l=1&h=1&q=9&k=3", scheme="light"):  # noqa: A002
            options = {"has_touch": True, "is_mobile": True, "color_scheme": scheme}
            if what == "page":
                return show(model, hash, width=width, height=844, **options)
            file = tmp_path / "report.html"
            regard.report(model, file)
            viewport = {"width": width, "height": 844}
            page = stack.enter_context(pages(viewport=viewport, offline=True, **options))
            page.goto(file.as_uri() + hash)
            page.locator("#tokens .token").first.wait_for()
            return settled(page)

        yield go


@pytest.mark.parametrize("what", ["page", "report"])
def test_a_phone_shows_one_column_of_whole_panels(phone, settled, resize, what):
    page = phone(what, 390)
    for width in (390, 480, 600, 700):
        resize(page, width)
        one_column(page, settled, width)


def one_column(page, settled, width):
    for tab in ("steps", "readouts"):
        page.locator(f"#tab-{tab}").tap()
        settled(page)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate(OVERLAPS) == []
        assert page.evaluate(OUTSIDE) == []
        boxes = [page.locator(name).bounding_box() for name in SECTIONS]
        assert all(box["x"] == 0 and box["width"] == width for box in boxes)
        tops = [box["y"] for box in boxes]
        assert tops == sorted(tops)
    field = page.locator("#map-first canvas").bounding_box()
    assert field["width"] > 0.85 * min(width, 560)
    # Every head's picture has come, and is a picture.
    pictures = page.locator("#grid .cell canvas")
    assert pictures.evaluate_all("(all) => all.every(({ width }) => width > 1)")


def test_the_map_is_used_by_fingers_and_the_page_still_scrolls(phone, settled):
    page = phone("page", 390)
    canvas = page.locator("#map-first canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    touch = "(one) => getComputedStyle(one).touchAction"
    assert canvas.evaluate(touch) == "pan-y"  # a finger on the whole map scrolls the page
    page.touchscreen.tap(box["x"] + 0.3 * box["width"], box["y"] + 0.6 * box["height"])
    settled(page)
    query, key = page.locator("#cross dd").all_text_contents()[:2]
    assert (query.split()[0], key.split()[0]) != ("9", "3")
    page.locator("#zoom-in").tap()
    settled(page)
    assert page.locator("#zoom-note").text_content().startswith("queries ")
    assert canvas.evaluate(touch) == "none"  # now it moves the map
    # Choosing on the map does not take the page to the text.
    canvas.scroll_into_view_if_needed()
    box, before = canvas.bounding_box(), page.evaluate("scrollY")
    page.touchscreen.tap(box["x"] + 0.5 * box["width"], box["y"] + 0.4 * box["height"])
    settled(page)
    assert page.evaluate("scrollY") == before


@pytest.mark.parametrize("state", ["x=head&o=1,2", "x=text&t2=the+other+text", "w=1", "b=readouts"])
def test_every_state_of_the_page_fits_a_phone(phone, state):
    page = phone("page", 390, f"#l=1&h=1&q=9&k=3&{state}")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate(OVERLAPS) == []
    assert page.evaluate(OUTSIDE) == []


def test_the_menus_open_within_the_screen(phone):
    page = phone("page", 390)
    page.locator("#export summary").tap()
    assert page.evaluate(OUTSIDE) == []
    page.keyboard.press("Escape")
    page.locator("#link").tap()
    page.locator("#link-message.visible").wait_for()
    assert page.evaluate(OUTSIDE) == []


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (720, "light"), (1920, "dark")])
def test_the_opening_fits_every_screen(phone, show, model, width, scheme):
    from axe_playwright_python.sync_playwright import Axe

    if width == 390:
        page = phone("page", width, "#p=opening", scheme)
    else:
        page = show(model, "#p=opening", width=width, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(OVERLAPS) == []
    assert page.evaluate(OUTSIDE) == []
    names = ["header", "#saying", "#text-panel", "#heads-panel", "#map-panel", "#tab-panel"]
    tops = [page.locator(name).bounding_box()["y"] for name in names]
    assert tops == sorted(tops)
    axe = Axe().run(page)
    assert axe.violations_count == 0, axe.generate_report()


@pytest.mark.parametrize("width", [720, 900, 1440])
def test_nothing_overlaps_on_wider_screens_and_what_a_head_does_is_said_whole(show, model, width):
    page = show(model, "#l=1&h=1&q=9&k=3", width=width)
    assert page.evaluate(OVERLAPS) == []
    about = page.locator("#map-first .about")
    assert about.evaluate("(one) => one.scrollWidth <= one.clientWidth")
    assert about.evaluate("(one) => getComputedStyle(one).textOverflow") == "clip"


def test_the_candidates_of_the_opening_are_seen_whole(phone, settled):
    page = phone("page", 400, "#p=opening")
    settled(page)
    assert page.locator("body.opening").count() == 1
    candidates = page.locator("#predictions")
    assert candidates.evaluate("(list) => list.scrollHeight - list.clientHeight") == 0
