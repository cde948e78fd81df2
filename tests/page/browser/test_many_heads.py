"""More heads than a page has room for as buttons: one canvas, used by pointer, fingers and keys."""

from collections import Counter

import pytest
import torch

from regard.gpt import GPT, GPTConfig
from regard.page import ModelSubject

LAYERS, HEADS = 17, 29  # 493 heads: just more than the 480 that are buttons
EDGES = 20, 14  # pixels of the layers' numbers at the left, and of the heads' numbers above
ELEMENTS = 1200  # of the whole page; a button with four parts for each head would be 2,465 alone
# How many colours the canvas has.
PAINTED = """(canvas) => {
  const { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const colours = new Set();
  for (let k = 0; k < data.length; k += 4) colours.add(data.slice(k, k + 3).join());
  return colours.size;
}"""


@pytest.fixture(scope="module")
def many(shipped):
    """A model of 17 layers × 29 heads; its weights are large, so that its heads differ."""
    torch.manual_seed(0)
    _, tokenizer = shipped
    config = GPTConfig(
        vocab_size=tokenizer.vocab_size, context=32, layers=LAYERS, heads=HEADS, dim=2 * HEADS
    )
    model = GPT(config)
    with torch.no_grad():
        for block in model.h:
            block.attn.c_attn.weight.mul_(8)
    text = "The cat sat on the mat. The cat sat on the"
    subject = ModelSubject(model, tokenizer, title="many", text=text)
    run = subject.run(subject.about()["runs"][0])
    score, scores = run.scores, {}
    for layer in range(LAYERS):  # those of three layers, which take a second each, stand for all
        heads = score(layer % 3)["heads"]
        shifted = [{**head, "entropy": head["entropy"] - 1e-4 * layer} for head in heads]
        scores[layer] = {"layer": layer, "heads": shifted}
    run.scores = lambda layer, _=None: scores[layer]
    return subject


@pytest.fixture(scope="module")
def figures(many):
    """What each head does, by layer and head."""
    run = many.run(many.about()["runs"][0])
    return {
        (layer, entry["head"]): entry
        for layer in range(LAYERS)
        for entry in run.scores(layer)["heads"]
    }


@pytest.fixture(scope="module")
def page(show_once, many):
    return show_once(many, "#l=3&h=5")


@pytest.fixture
def canvas(page, settled):
    page.locator("#sort").select_option("order")
    page.locator("#role").select_option("")
    return settled(page).locator("#grid canvas")


def middle(canvas, layer, head):
    """Where a cell is on the canvas, where layers are down and heads across."""
    pitch = (canvas.bounding_box()["width"] - 8 - EDGES[0]) // HEADS
    return {"x": EDGES[0] + (head + 0.5) * pitch, "y": EDGES[1] + (layer + 0.5) * pitch}


def chosen(page):
    return page.locator("#tab-panel-title").text_content().split(" under ")[1]


def named(layer, head):
    return f"Layer {layer} · Head {head}"


def test_one_canvas_has_all_heads(page, canvas):
    assert canvas.count() == 1
    assert page.locator("#grid .cell").count() == 0
    assert page.locator("*").count() < ELEMENTS
    assert canvas.evaluate(PAINTED) > 30  # of pictures; empty cells have one colour


def test_the_pointer_shows_a_head_and_a_click_chooses_it(page, canvas, figures, settled):
    before = chosen(page)
    canvas.hover(position=middle(canvas, 2, 17))
    title = settled(page).locator("#head-card strong").text_content()
    assert title == f"{named(2, 17)}: {figures[2, 17]['role']}"
    assert chosen(page) == before
    canvas.click(position=middle(canvas, 2, 17))
    settled(page)
    assert chosen(page) == "layer 2, head 17"
    assert f"{named(2, 17)}, {figures[2, 17]['role']}" in canvas.get_attribute("aria-label")


def test_arrows_choose_the_head_beside_and_a_voice_says_it(page, canvas, figures, settled):
    canvas.click(position=middle(canvas, 2, HEADS - 2))
    canvas.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):  # at the end of a row it stays there
        page.keyboard.press(key)
    settled(page)
    assert chosen(page) == f"layer 3, head {HEADS - 1}"
    words = f"{named(3, HEADS - 1)}, {figures[3, HEADS - 1]['role']}"
    assert words in page.locator("#grid [aria-live]").text_content()
    # Down at the last layer, the room has scrolled with it.
    for _ in range(LAYERS):
        page.keyboard.press("ArrowDown")
    settled(page)
    assert chosen(page) == f"layer {LAYERS - 1}, head {HEADS - 1}"
    room = page.locator("#grid")
    assert room.evaluate(
        "({ scrollTop, scrollHeight, clientHeight }) => "
        "scrollHeight - clientHeight - scrollTop < 12"
    )


def test_heads_are_sorted_by_a_score(page, canvas, figures, settled):
    page.locator("#sort").select_option("entropy")
    settled(page)
    canvas.click(position={"x": 6, "y": 6})
    settled(page)
    first, second = sorted(figures, key=lambda place: -figures[place]["entropy"])[:2]
    assert chosen(page) == "layer {}, head {}".format(*first)
    page.keyboard.press("ArrowRight")
    settled(page)
    assert chosen(page) == "layer {}, head {}".format(*second)


def test_the_heads_of_a_role_are_shown_alone(page, canvas, figures, settled):
    counts = Counter(entry["role"] for entry in figures.values())
    options = page.locator("#role option").all_text_contents()
    assert options[0] == f"all roles ({LAYERS * HEADS})"
    assert set(options[1:]) == {f"{role} ({count})" for role, count in counts.items()}
    role, count = counts.most_common()[-1]
    page.locator("#role").select_option(role)
    assert (
        settled(page)
        .locator("#grid canvas")
        .get_attribute("aria-label")
        .startswith(f"{count} heads; ")
    )
    canvas.click(position={"x": 8, "y": 8})
    settled(page)
    expected = [place for place, entry in figures.items() if entry["role"] == role]
    assert chosen(page) == "layer {}, head {}".format(*expected[0])
    assert f"n={role.replace(' ', '+')}" in page.evaluate("location.hash")


@pytest.mark.thorough
def test_few_heads_are_filtered_too(show, model, settled):
    page = show(model, "#l=1&h=1")
    run = model.run(model.about()["runs"][0])
    roles = [
        entry["role"] for layer in range(len(run.layers)) for entry in run.scores(layer)["heads"]
    ]
    role, count = Counter(roles).most_common()[-1]
    page.locator("#role").select_option(role)
    titles = settled(page).locator("#grid .cell").evaluate_all("(all) => all.map((c) => c.title)")
    assert [title.split("\n")[0].split(": ")[1] for title in titles] == [role] * count
    assert page.locator("#grid .cell[tabindex='0']").count() == 1
    page.locator("#role").select_option("")
    assert settled(page).locator("#grid .cell").count() == len(roles)


@pytest.mark.thorough
def test_a_head_is_switched_off_and_the_layers_in_sight_are_asked_for_first(page, canvas, settled):
    canvas.click(position=middle(canvas, 4, 11))
    settled(page)
    # The last layers are in sight.
    page.locator("#grid").evaluate("(one) => { one.scrollTop = one.scrollHeight; }")
    settled(page)
    top = page.locator("#grid").evaluate("(one) => one.scrollTop")
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.keyboard.press("x")
    settled(page)
    layers = [int(url.split("layer=")[1].split("&")[0]) for url in asked if "thumbnails?" in url]
    assert sorted(layers) == list(range(LAYERS))
    pitch = (canvas.bounding_box()["width"] - 8 - EDGES[0]) // HEADS
    assert layers[:2] == [4, int(top // pitch)]
    names = [url for url in asked if "/heads?" in url]
    assert [url.split("?")[1] for url in names] == ["first=4"]
    assert "switched off" in canvas.get_attribute("aria-label")


def test_a_trackpad_s_pinch_enlarges_the_cells(page, canvas, settled):
    """It arrives as turns of a wheel with Ctrl; without Ctrl they scroll."""
    room = page.locator("#grid")
    width = "(one) => one.firstChild.clientWidth"
    before = room.evaluate(width)
    box = room.bounding_box()  # which may have been scrolled
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    page.mouse.wheel(0, -80)
    settled(page)
    assert room.evaluate(width) == before
    page.keyboard.down("Control")
    for _ in range(9):
        page.mouse.wheel(0, -8)  # in all e^0.72, which is more than twice
    settled(page)
    larger = room.evaluate(width)
    assert larger > 1.5 * before
    page.mouse.wheel(0, 40)  # too little
    settled(page)
    assert room.evaluate(width) == larger
    page.mouse.wheel(0, 40)
    settled(page)
    assert room.evaluate(width) == before
    page.keyboard.up("Control")
    assert page.evaluate("visualViewport.scale") == 1


@pytest.mark.thorough
def test_a_phone_has_all_heads_too(show, many, settled):
    from axe_playwright_python.sync_playwright import Axe

    page = show(many, "#l=3&h=5", width=390, height=844, has_touch=True, is_mobile=True)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.locator("*").count() < ELEMENTS
    canvas = page.locator("#grid canvas")
    canvas.scroll_into_view_if_needed()
    canvas.tap(position=middle(canvas, 2, 17))
    settled(page)
    assert chosen(page) == "layer 2, head 17"
    # A pinch enlarges the cells: the room scrolls in itself, the page does not grow.
    box = canvas.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + 60
    session = page.context.new_cdp_session(page)
    for kind, apart in (("touchStart", 20), ("touchMove", 40), ("touchMove", 80), ("touchEnd", 0)):
        points = [{"x": x - apart, "y": y, "id": 0}, {"x": x + apart, "y": y, "id": 1}]
        session.send(
            "Input.dispatchTouchEvent",
            {"type": kind, "touchPoints": points if apart else []},
        )
    settled(page)
    room = page.locator("#grid")
    assert room.evaluate("(one) => one.scrollWidth > 1.5 * one.clientWidth && one.scrollLeft > 0")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate("visualViewport.scale") == 1
    axe = Axe().run(page)
    assert axe.violations_count == 0, axe.generate_report()
