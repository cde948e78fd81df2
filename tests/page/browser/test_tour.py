"""The tour: six cards, each beside what it speaks of, by pointer, key and address."""

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe

from regard.page import RecordingSubject

TITLES = ["What comes next", "Where it looked", "Every word looked back", "Is that look needed?"]
TITLES += ["Your own words", "Where to go on"]

# What the frame and the card cover, and what each step speaks of, in the window.
BOXES = """() => Object.fromEntries(Object.entries({ frame: "#tour-frame", card: "#tour-card",
  next: "#predictions-panel", arc: ".arcs path[data-key]", chosen: "#grid .cell[aria-pressed=true]",
  query: "#tokens .query", own: "#examples button:last-child", panel: "#view" })
  .map(([name, one]) => [name, document.querySelector(one)?.getBoundingClientRect().toJSON()]))"""

OF = ["next", "arc", "query", "chosen", "own", "panel"]


def title(page):
    return page.locator("#tour-title").inner_text()


def inside(box, other, *, by=0):
    return (
        box["left"] >= other["left"] - by
        and box["right"] <= other["right"] + by
        and box["top"] >= other["top"] - by
        and box["bottom"] <= other["bottom"] + by
    )


def apart(box, other):
    return (
        box["bottom"] <= other["top"]
        or other["bottom"] <= box["top"]
        or box["right"] <= other["left"]
        or other["right"] <= box["left"]
    )


@pytest.mark.parametrize(
    ("width", "height"), [pytest.param(1280, 720, marks=pytest.mark.thorough), (390, 844)]
)
def test_each_card_stands_beside_what_it_speaks_of(show, settled, model, width, height):
    page = show(model, "#p=opening", width=width, height=height, reduced_motion="reduce")
    page.locator("#tour").click()
    window = {"left": 0, "top": 0, "right": width, "bottom": height}
    for number, name in enumerate(TITLES):
        # What a click asks for may be asked after it.
        page.locator("#tour-card .note", has_text=f"{number + 1} of 6").wait_for()
        settled(page)
        assert title(page) == name
        if OF[number] == "query":  # the one that the trial looks from
            page.locator("#tour-card .tried").click()
            settled(page)
        boxes = page.evaluate(BOXES)
        assert inside(boxes[OF[number]], boxes["frame"]), name
        assert inside(boxes["card"], window), name
        assert inside(boxes["frame"], window, by=8), name
        assert apart(boxes["card"], boxes["frame"]), name
        assert page.evaluate("document.activeElement.closest('#tour-card') !== null"), name
        page.keyboard.press("Tab")  # to a button of the card, or on to the page: no trap
        page.locator("#tour-card .main").click()
    assert page.locator("#tour-card").count() == 0
    assert page.evaluate("document.activeElement.id") == "tour"


def test_what_a_step_tried_is_taken_back_and_keys_turn_the_cards(show, settled, model):
    page = show(model, "#p=opening&tour=1")
    page.locator("#tour-card").wait_for()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    assert title(page) == "Is that look needed?"
    page.locator("#tour-card .tried").click()
    settled(page)
    assert "e=off." in page.url
    boxes = page.evaluate(BOXES)
    assert inside(boxes["next"], boxes["frame"])
    axe = Axe().run(page, options={"preload": False})
    assert axe.violations_count == 0, axe.generate_report()
    page.keyboard.press("Escape")
    settled(page)
    assert page.locator("#tour-card").count() == 0
    assert "e=off." not in page.url
    assert "tour" not in page.url


def test_steps_of_what_the_page_lacks_are_left_out(show, settled, make_recording):
    query, key = torch.randn(2, 1, 2, 11, 8, generator=torch.Generator().manual_seed(0))
    subject = RecordingSubject(make_recording([(query, key)]), title="no model")
    page = show(subject, "#p=opening&tour=1")
    page.locator("#tour-card").wait_for()
    titles = []
    while page.locator("#tour-card").count():
        titles.append(title(page))
        page.keyboard.press("ArrowRight")
        settled(page)
    assert titles == ["Where it looked", "Every word looked back", "Where to go on"]
