"""What matters here: heads and tokens that the next token rests on, measured and marked."""

import math
from threading import Event

import pytest

import regard

pytestmark = pytest.mark.thorough


@pytest.fixture
def plain(model):
    return model.run(model.about()["runs"][0])


@pytest.fixture
def table(model, plain):
    return {over: model.effects(plain, over, lambda *_: None) for over in ("heads", "keys")}


def test_what_the_next_token_rests_on_is_said_and_marked(
    show, settled, in_words, finding, model, plain, table
):
    page = show(model, "#l=1&h=1")
    assert page.locator("#finding").text_content() == ""
    page.locator("#matters").click()
    settled(page)
    effects, start = table["heads"]["effects"], table["heads"]["unchanged"]
    value, layer, head = min(
        (value, layer, head) for layer, row in enumerate(effects) for head, value in enumerate(row)
    )
    after = in_words(math.exp(start + value))
    assert page.locator("#finding").text_content() == finding(plain, **table)
    key = min(range(len(table["keys"]["effects"])), key=table["keys"]["effects"].__getitem__)
    # The grid: a bar each, the longest for that head, and in words.
    widths = page.locator("#grid .need").evaluate_all("(all) => all.map((one) => one.style.width)")
    cell = page.locator(f"#grid .cell[data-layer='{layer}'][data-head='{head}']")
    assert cell.locator(".need").is_visible()
    largest = max(abs(value) for row in effects for value in row)
    flat = [value for row in effects for value in row]
    percents = [int(width.removesuffix("%")) for width in widths]
    assert percents == pytest.approx([100 * abs(one) / largest for one in flat], abs=0.51)
    assert f"→ {after}" in cell.get_attribute("aria-label")
    # The text: the tokens that it needs, the most needed one in full colour.
    shadow = page.locator(f"#tokens [data-at='{key}']").evaluate("(one) => one.style.boxShadow")
    assert "100%" in shadow or "rgb" in shadow or "color" in shadow
    assert page.locator("#legend .needs").is_visible()
    page.locator("#matters").click()
    settled(page)
    assert page.locator("#finding").text_content() == ""
    assert not cell.locator(".need").is_visible()
    assert page.locator(f"#tokens [data-at='{key}']").get_attribute("title") == ""


def test_measuring_says_how_far_it_is_and_can_be_called_off(
    show, settled, shipped, monkeypatch, running
):
    from regard.page import _changes
    from regard.page.subjects import ModelSubject

    ended, measure = Event(), regard.lens.effects

    def effects(*given, progress, **options):
        try:
            progress(3, 16)
            while True:
                Event().wait(0.01)
                progress(4, 16)
        finally:
            ended.set()

    page = show(ModelSubject(*shipped, title="the model", text="A text of its own."), "#l=1&h=1")
    monkeypatch.setattr(_changes, "effects", effects)
    button = page.locator("#matters")
    button.click()
    page.get_by_role("button", name="Stop (head 4 of 16)").wait_for()
    page.locator("#grid .cell").nth(2).click()  # the page goes on meanwhile
    page.locator("#head-card strong", has_text="Layer 0 · Head 2").wait_for()
    button.click()
    settled(page)
    assert ended.wait(30)
    assert button.text_content() == "What matters here?"
    assert page.locator("#problem").is_hidden()
    monkeypatch.setattr(_changes, "effects", measure)
    button.click()
    settled(page)
    assert page.locator("#finding").text_content()


def test_what_was_measured_ends_with_its_text(show, settled, model):
    page = show(model, "#l=1&h=1")
    page.locator("#matters").click()
    settled(page)
    page.keyboard.press("x")
    settled(page)
    assert page.locator("#finding").text_content()  # of the text as it is, beside the change
    page.locator("#predictions button").first.click()
    settled(page)
    assert page.locator("#finding").text_content() == ""
    assert page.locator("#matters").text_content() == "What matters here?"
