"""Accessibility: names, landmarks, contrast, reduced motion."""

from itertools import pairwise

import pytest

STATES = {
    "head": "#l=1&h=1&q=9&k=3&z=2,2,6",
    "readouts of a mean": "#l=1&h=1&q=9&k=3&b=readouts&a=layer",
    "two heads": "#l=1&h=1&q=9&k=3&x=head&o=0,1",
    "two texts": "#l=1&h=1&q=9&k=3&x=text&t2=the+other+text&q2=2&k2=1",
    "changed": "#l=1&h=1&q=9&k=3&x=change&d=1&e=off.2.1_cut.1.1.9-10.3-5",
}
TABS = {"tab-steps", "tab-readouts"}  # Tab comes to the one that is chosen
USUAL = {"head"}  # the others take part in make thorough
NAMED = {
    *("button", "link", "textbox", "combobox", "radio", "tab", "spinbutton", "separator"),
    *("splitter", "image", "img", "radiogroup", "group", "region", "tabpanel", "table", "dialog"),
    *("DisclosureTriangle", "navigation", "complementary"),
}


@pytest.fixture(
    params=[
        pytest.param(address, id=name, marks=[pytest.mark.thorough] * (name not in USUAL))
        for name, address in STATES.items()
    ],
    scope="module",
)
def page(request, show_once, model):
    return show_once(model, request.param)


def open_menu(page):
    page.locator("#export").evaluate("(menu) => { menu.open = true; }")


def tree(page):
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    return [
        (node["role"]["value"], node.get("name", {}).get("value", "").strip(), node)
        for node in nodes
        if not node.get("ignored")
    ]


def every_stop_shows_its_focus(page):
    """A ring at every stop of Tab."""
    seen, names, poor = set(), set(), []
    for _ in range(120):
        page.keyboard.press("Tab")
        stop = page.evaluate(
            """() => {
              const one = document.activeElement;
              if (one === document.body) return null;
              const { outlineStyle, outlineWidth } = getComputedStyle(one);
              one.dataset.stop ??= String((window.stops = (window.stops ?? 0) + 1));
              const ring = outlineStyle !== "none" && parseFloat(outlineWidth) >= 1.5;
              const { width, height } = one.getBoundingClientRect();
              const name = one.id || one.className || one.tagName;
              return [one.dataset.stop, name, ring && width * height > 0];
            }"""
        )
        if stop is None or stop[0] in seen:
            break
        seen.add(stop[0])
        names |= set(stop[1].split())
        if not stop[2]:
            poor.append(stop[1])
    assert poor == []
    always = {"compare", "link", "theme", "help", "edit", "generate", "sort", "size", "splitter"}
    assert always | {"token", "cell", "tab-steps", "fold", "zoom-in", "key-name"} <= names | TABS


def test_every_part_is_named_in_order_and_the_pictures_in_words(page):
    every_stop_shows_its_focus(page)
    open_menu(page)
    actual = tree(page)
    nameless = [
        (role, node.get("backendDOMNodeId"))
        for role, name, node in actual
        if role in NAMED and not name
    ]
    assert nameless == []
    # Landmarks: one page, its parts, what is under the crosshair, and the page's own controls.
    roles = [role for role, _, _ in actual]
    assert roles.count("main") == roles.count("banner") == roles.count("navigation") == 1
    regions = {name for role, name, _ in actual if role == "region"}
    assert regions == {"Changes", "View", "Text", "Map", "Heads", "Steps and readouts"}
    assert ("complementary", "Under the crosshair") in {(role, name) for role, name, _ in actual}
    # Headings go down one level at a time, from one at the top.
    levels = page.locator("h1, h2, h3, h4").evaluate_all(
        """(all) => all.filter((one) => one.checkVisibility())
          .map((one) => Number(one.tagName[1]))"""
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    # Every picture that is not part of a button is an image with words.
    canvases = page.locator("canvas").evaluate_all(
        """(all) => all.filter((one) => one.checkVisibility()).map((one) =>
          [one.getAttribute("role"), one.ariaLabel ?? "", one.ariaHidden === "true"])"""
    )
    assert all(hidden or (role == "img" and len(label) > 10) for role, label, hidden in canvases)
    shown = page.locator("#map-first canvas").get_attribute("aria-label")
    assert "queries " in shown
    assert "at query 9" in shown
    # What is under the crosshair is announced once it rests, politely.
    live = page.locator("#live")
    assert live.get_attribute("aria-live") == "polite"
    assert "query 9" in live.text_content()
    assert "weight 0." in live.text_content() or "·10" in live.text_content()


def test_axe_finds_nothing(page):
    from axe_playwright_python.sync_playwright import Axe

    open_menu(page)
    axe = Axe().run(page)
    assert axe.violations_count == 0, axe.generate_report()


@pytest.mark.thorough
def test_what_is_chosen_is_told_to_a_screen_reader(show, settled, model):
    page = show(model, "#l=1&h=2&q=5&k=3")
    snapshot = page.locator("#text-panel").aria_snapshot()
    assert 'radio "head" [checked]' in snapshot
    assert 'button "token 5: ' in snapshot
    assert "[pressed]" in snapshot
    assert page.locator("#grid").aria_snapshot().count("[pressed]") == 1
    assert 'tab "Steps" [selected]' in page.locator("#tab-panel-head").aria_snapshot()
    table = page.locator("#steps").aria_snapshot()
    assert 'columnheader "q·k"' in table
    assert table.count('button "key ') == 6
    page.locator("#map-first canvas").focus()
    page.keyboard.press("ArrowDown")
    assert "query 6" in settled(page).locator("#live").text_content()


# Of everything that is written on the page: the colour of its letters on what lies below them.
CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const parse = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => top.slice(0, 3).map((c, k) => c * top[3] + below[k] * (1 - top[3]));
  const light = (rgb) => rgb.map((c) => c / 255).map((c) =>
    c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, k) => sum + c * [0.2126, 0.7152, 0.0722][k], 0);
  const below = (one) => one
    ? over(parse(getComputedStyle(one).backgroundColor), below(one.parentElement))
    : [255, 255, 255];
  const poor = [];
  for (const one of document.querySelectorAll("body *")) {
    const text = [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!text || !one.checkVisibility() || one.closest(":disabled, .unseen, option")) continue;
    const ground = below(one);
    const ink = over(parse(getComputedStyle(one).color), ground);
    const [a, b] = [light(ink), light(ground)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    const name = one.id || one.className || one.tagName;
    if (ratio < 4.5) poor.push([name, one.textContent.slice(0, 20), ratio]);
  }
  return poor;
}"""


MOVING = """() => [...document.querySelectorAll("body *")].filter((one) => {
  const style = getComputedStyle(one);
  return style.animationName !== "none" || /[1-9]/.test(style.transitionDuration);
}).map((one) => one.id || one.className)"""


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_that_is_written_can_be_read(show, settled, model, scheme):
    page = show(model, STATES["head"], color_scheme=scheme, reduced_motion="reduce")
    assert page.evaluate(MOVING) == []
    page.locator("#export summary").click()
    # The darkest shade that a token can have, as well.
    page.evaluate(
        """() => {
          const token = document.querySelector("#tokens .token:not(.query)");
          token.style.backgroundColor = "color-mix(in srgb, var(--accent) 58%, transparent)";
        }"""
    )
    assert page.evaluate(CONTRAST) == []
    page.keyboard.press("Escape")
    page.keyboard.press("t")
    settled(page)
    assert page.evaluate(CONTRAST) == []
    # What the canvases write with, and the rings of what has the focus (3 : 1 is asked of those).
    page.keyboard.press("?")
    assert page.evaluate(CONTRAST) == []


@pytest.mark.thorough
def test_nothing_moves_for_who_asked_for_that(show, settled, model):
    page = show(model, reduced_motion="reduce")
    page.locator("#predictions button").first.click()
    settled(page)
    assert page.locator("#tokens .token.new").count() == 1
    assert page.evaluate(MOVING) == []
    assert page.evaluate("document.getAnimations().length") == 0
