"""Changing the model on the page: heads switched off, keys cut; the next token before and after."""

from urllib.parse import parse_qsl

import pytest

from regard.page._changes import Ablation, KnockOut

pytestmark = pytest.mark.thorough

OFF = Ablation(kind="off", layer=2, head=1)
CUT = KnockOut(kind="cut", layer=1, head=1, queries=(9, 10), keys=(4, 5))


def state(page):
    return dict(parse_qsl(page.evaluate("location.hash.slice(1)")))


def chips(page):
    return page.locator("#chips button span").all_text_contents()


def figures(page):
    """The next tokens: before and after, as they are written."""
    return page.locator("#predictions b").evaluate_all(
        """(all) => all.map((one) => [...one.childNodes].filter((part) => part.nodeType === 3
          || part.tagName === "EM").map((part) => part.textContent))"""
    )


@pytest.fixture
def plain(model):
    return model.run(model.about()["runs"][0])


def test_a_head_is_switched_off_and_on_again_from_its_card(show, settled, written, model, plain):
    page = show(model, "#l=2&h=1")
    assert figures(page)[0][0].startswith("0.")
    assert len(figures(page)[0]) == 1
    page.locator("#switch").click()
    settled(page)
    run = model.change(plain, [OFF])
    (_, _, after), before = run.following[0], run.before[0]
    assert figures(page)[0] == [written(before), written(after)]
    assert chips(page) == ["head 2·1 off"]
    assert state(page)["e"] == "off.2.1"
    cell = page.locator("#grid .cell[data-layer='2'][data-head='1']")
    assert "off" in cell.get_attribute("class").split()
    assert "switched off" in cell.get_attribute("aria-label")
    assert page.locator("#switch").text_content() == "Switch on again"
    assert page.locator("#effect").text_content().startswith("With head 2·1 switched off, ")
    page.locator("#switch").click()
    settled(page)
    assert chips(page) == []
    assert "e" not in state(page)
    assert len(figures(page)[0]) == 1


def test_the_grid_switches_heads_off(show, settled, model):
    page = show(model, "#l=0&h=0")
    page.locator("#switching").click()
    for head in (1, 2):
        page.locator(f"#grid .cell[data-layer='1'][data-head='{head}']").click()
    settled(page)
    assert chips(page) == ["head 1·1 off", "head 1·2 off"]
    said = page.locator("#effect").text_content()
    assert said.startswith("With heads 1·1 and 1·2 switched off, ")
    page.locator("#switching").click()
    page.locator("#grid .cell[data-layer='1'][data-head='3']").click()
    settled(page)
    assert len(chips(page)) == 2  # it chooses heads again
    page.keyboard.press("x")
    settled(page)
    assert chips(page)[-1] == "head 1·3 off"


def test_later_layers_are_those_of_the_changed_run(show, settled, written, model, plain):
    page = show(model, "#l=3&h=1&q=9&k=3&e=off.2.1")
    run = model.change(plain, [OFF])
    shown = page.locator("#cross dd.strong").text_content()
    assert shown == written(run.cell(3, 1, 9, 3)["weight"])
    assert shown != written(plain.cell(3, 1, 9, 3)["weight"])


def test_a_link_a_token_and_a_drawn_span_are_cut(show, settled, model):
    page = show(model, "#l=1&h=1&q=9&k=4")
    page.locator("#cut").click()
    page.locator("#cut-make").click()
    settled(page)
    assert state(page)["e"] == "cut.1.1.9-10.4-5"
    assert page.locator("#cross dd.strong").text_content() == "hidden"
    assert "cut" in page.locator("#tokens [data-at='4']").get_attribute("class").split()
    assert page.locator("#cut-make").text_content() == "Take back"
    page.locator("#cut-what [value=token]").click()
    page.locator("#cut-where [value=all]").click()
    page.locator("#cut-make").click()
    settled(page)
    assert state(page)["e"] == "cut.1.1.9-10.4-5_cut.all.all.all.4-5"
    page.locator("#cut-what [value=span]").click()
    page.locator("#cut-where [value=layer]").click()
    box = page.locator("#map-first canvas").bounding_box()
    page.mouse.move(box["x"] + 160, box["y"] + 200)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 260, steps=3)
    page.mouse.up()
    settled(page)
    fields = ["cut-query", "cut-query-last", "cut-key", "cut-key-last"]
    numbers = [int(page.locator(f"#{name}").input_value()) for name in fields]
    assert numbers[0] < numbers[1]
    assert numbers[2] < numbers[3]
    page.locator("#cut-make").click()
    settled(page)
    span = f"{numbers[0]}-{numbers[1] + 1}.{numbers[2]}-{numbers[3] + 1}"
    assert state(page)["e"].endswith(f"_cut.1.all.{span}")
    assert len(chips(page)) == 3


def test_undo_back_and_chips_take_changes_back(show, settled, model):
    page = show(model, "#l=2&h=1")
    for key in ("x", "]", "x"):
        page.keyboard.press(key)
        settled(page)
    both = ["head 2·1 off", "head 2·2 off"]
    assert chips(page) == both
    page.keyboard.press("Control+z")
    settled(page)
    assert chips(page) == both[:1]
    page.keyboard.press("Control+Shift+z")
    settled(page)
    assert chips(page) == both
    page.locator("#undo").click()
    page.locator("#undo").click()
    settled(page)
    assert chips(page) == []
    assert page.locator("#undo").is_disabled()
    page.go_back()
    settled(page)
    assert chips(page) == both[:1]
    page.go_back()
    settled(page)
    assert chips(page) == both
    page.locator("#chips button").first.click()
    settled(page)
    assert chips(page) == both[1:]
    assert page.evaluate("document.activeElement.textContent").startswith(both[1])


def test_changes_stay_as_the_text_grows_and_end_with_it(show, settled, model):
    page = show(model, "#l=2&h=1&e=off.2.1")
    count = page.locator("#tokens .token").count()
    page.locator("#predictions button").first.click()
    settled(page)
    assert page.locator("#tokens .token").count() == count + 1
    assert chips(page) == ["head 2·1 off"]
    assert len(figures(page)[0]) == 2
    page.locator("#edit").click()
    page.locator("#entry-text").fill("another text")
    page.locator("#entry-run").click()
    settled(page)
    assert chips(page) == []
    assert "e" not in state(page)


def test_an_address_with_changes_of_what_is_not_there_opens_without_them(show, model):
    page = show(model, "#l=1&h=1&e=off.9.9_cut.1.1.0-999.0-1_off.1.x_off.1.1")
    assert chips(page) == ["head 1·1 off"]


def test_a_recording_says_why_nothing_can_be_changed(show, recorded):
    page = show(recorded, "#l=1&h=1")
    assert "This is a recording" in page.locator("#changes-none").text_content()
    assert not page.locator("#acts").is_visible()
    assert not page.locator("#switch").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_as_it_is_stands_beside_changed_with_the_difference(
    show, settled, written, model, plain, scheme
):
    page = show(
        model, "#l=3&h=1&q=9&k=4&e=off.2.1_cut.3.1.9-10.4-5", color_scheme=scheme, width=1600
    )
    page.locator("#beside").click()
    settled(page)
    assert page.locator(".side-name").first.text_content() == "as it is"
    assert state(page)["x"] == "change"
    facts = dict(
        page.locator("#cross dt").evaluate_all(
            "(all) => all.map((one) => [one.textContent, one.nextSibling.textContent])"
        )
    )
    assert facts["weight as it is"] == written(plain.cell(3, 1, 9, 4)["weight"])
    assert facts["weight changed"] == "hidden"
    page.get_by_role("radio", name="difference").click()
    settled(page)
    assert state(page)["d"] == "1"
    second = page.locator("#map-second canvas")
    assert second.get_attribute("aria-label").startswith("Difference, changed − as it is")
    assert "-" not in page.locator("#scale").get_attribute("aria-label")
    page.locator("#map-second canvas").focus()
    settled(page)
    assert "from −" in page.locator("#scale").get_attribute("aria-label")
    # Both grids: the head is off in the changed one alone.
    for grid, off in (("#grid", False), ("#grid-second", True)):
        cell = page.locator(f"{grid} .cell[data-layer='2'][data-head='1']")
        assert ("off" in cell.get_attribute("class").split()) is off
    # Without changes there is nothing to compare.
    page.locator("#chips button").first.click()
    page.locator("#chips button").first.click()
    settled(page)
    assert "x" not in state(page)
    assert page.locator("#beside").is_disabled()
    assert page.locator("#map-second").is_hidden()


def test_the_form_is_used_by_keys_alone(show, settled, model):
    page = show(model, "#l=1&h=1&q=9&k=4")
    page.keyboard.press("c")
    settled(page)
    assert page.evaluate("document.activeElement.textContent") == "a link"
    for key in ("ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    for number in ("8", "10", "2", "3"):
        page.keyboard.press("Tab")
        page.keyboard.type(number)
    settled(page)
    page.keyboard.press("Enter")
    settled(page)
    assert state(page)["e"] == "cut.1.1.8-11.2-4"
    assert chips(page) == ["8–10 → 2–3 cut in 1·1"]
    page.keyboard.press("Escape")
    settled(page)
    assert page.locator("#cut-form").is_hidden()
    assert page.evaluate("document.activeElement.id") == "cut"


def test_a_finger_draws_a_span_on_a_phone(show, settled, model):
    options = {"has_touch": True, "is_mobile": True}
    page = show(model, "#l=1&h=1&q=9&k=4&e=off.2.1", width=390, height=844, **options)
    page.locator("#cut").click()
    page.locator("#cut-what [value=span]").click()
    settled(page)
    canvas = page.locator("#map-first canvas")
    assert canvas.evaluate("(one) => getComputedStyle(one).touchAction") == "none"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
