"""The grid of heads stays in place while heads are looked at; clicks arrive while it moves."""

import pytest

from regard.page import ModelSubject

PLACES = """() => [...document.querySelectorAll("#grid .cell")].map((cell) => {
  const { x, y, width, height } = cell.getBoundingClientRect();
  return [x, y, width, height];
})"""


@pytest.fixture(scope="module")
def short(shipped):
    """So short a text that some heads, not all, have too few queries to say what they do."""
    return ModelSubject(*shipped, title="short", text="A green parrot lived in the tent. Leila")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("size", "address"),
    [
        pytest.param((1440, 900), "#l=1&h=3", id="one map"),
        pytest.param((1680, 1000), "#l=1&h=3&x=head", id="two heads"),
        pytest.param((1280, 720), "#l=1&h=3&x=change&e=off.1.3", id="as it is and changed"),
        pytest.param((1440, 900), "#l=1&h=3&a=layer", id="a mean"),
    ],
)
def test_a_head_under_the_pointer_moves_none(show, settled, short, size, address):
    page = show(short, address, width=size[0], height=size[1])
    page.locator(
        "#grid .cell[aria-label*='too short']"
    ).first.wait_for()  # the longest of the texts
    before = page.evaluate(PLACES)
    notes = set()
    for cell in page.locator("#grid .cell").all():
        cell.dispatch_event("pointerover", {"pointerType": "mouse"})
        settled(page)
        notes.add(page.locator("#head-card p").first.text_content().split(";")[0])
        assert page.evaluate(PLACES) == before
    assert len(notes) > 2


@pytest.mark.thorough
def test_a_click_arrives_while_the_grid_is_laid_out_anew(show, settled, short, resize):
    page = show(short, "#l=1&h=3", width=1680, height=1100)
    cell = page.locator("#grid .cell[data-layer='0'][data-head='0']")
    cell.hover(position={"x": 5, "y": 5})
    page.mouse.down()
    before = cell.bounding_box()["height"]
    resize(page, 1680, 900)
    assert cell.bounding_box()["height"] != before
    page.mouse.up()
    settled(page)
    assert cell.get_attribute("aria-pressed") == "true"
