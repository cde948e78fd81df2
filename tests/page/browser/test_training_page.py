"""How heads formed, on the page: updates are gone through, and kept models opened."""

import re

import pytest
from support.explorer import TRAINED

from regard.gpt import head_history, load
from regard.page.subjects import ModelSubject
from regard.page.training import training_of

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def trained(train_folder):
    folder = train_folder(evaluate_every=2, record_every=2, keep_every=4)
    subject = ModelSubject(
        *load(folder), title="mine", text=TRAINED[:23], training=training_of(folder)
    )
    return subject, head_history(folder)


def figures(page, update):
    assert page.locator("#training output").text_content().startswith(f"update {update} ")
    return [
        float(text.split()[-1].replace("−", "-"))
        for text in page.locator(".formed .cell span").all_text_contents()
    ]


def drawn(page):
    return page.evaluate(
        "[...document.querySelectorAll('.formed canvas')].map((c) => c.toDataURL()).join()"
    )


def test_updates_are_gone_through_by_the_keyboard(show, settled, trained):
    subject, recorded = trained
    page = show(subject, "#l=0&h=1&s=entropy")
    page.locator("#tab-readouts").focus()
    page.keyboard.press("ArrowRight")
    slider = page.get_by_role("slider", name="Update of the training run")
    settled(page)
    scores = recorded.score("entropy")
    assert figures(page, 6) == pytest.approx(scores[2].flatten().tolist(), abs=0.0051)
    newest = drawn(page)
    slider.focus()
    page.keyboard.press("Home")
    settled(page)
    assert figures(page, 2) == pytest.approx(scores[0].flatten().tolist(), abs=0.0051)
    assert re.match(r"update 2, loss \d\.\d+", slider.get_attribute("aria-valuetext"))
    assert drawn(page) != newest
    assert drawn(page).count("data:image/png") == 6
    address = page.evaluate("location.hash")
    assert {"b=training", "u=2"} <= set(address[1:].split("&"))
    assert "q=" not in address  # the slider's keys move nothing else
    # The chosen head is seen in the place of the map, as it was; played, up to the newest update.
    over = "document.querySelector('#formed-map canvas').toDataURL()"
    assert page.locator("#formed-map").is_visible()
    first = page.evaluate(over)
    page.locator("#play").click()
    page.locator("#play", has_text="Play").wait_for()
    figures(settled(page), 6)
    assert page.evaluate(over) != first
    slider.press("Home")
    settled(page)
    assert page.evaluate(over) == first
    again = show(subject, address)
    assert figures(again, 2) == figures(page, 2)


def test_a_kept_model_is_opened_for_the_whole_page(show, settled, trained):
    subject, _ = trained
    page = show(subject, "#l=1&h=2&b=training&u=2")
    figures(page, 2)
    assert not page.locator(".forming a").is_visible()  # that model was not kept
    page.locator("#update").press("ArrowRight")
    settled(page).locator(".forming a", has_text="Open this update’s model").click()
    page.locator("#about-title", has_text="mine, update 4").wait_for()
    assert "update=4" in settled(page).url
    figures(page, 4)
    page.locator(".formed .cell").first.click()
    settled(page)
    assert page.locator("#map-first select").first.input_value() == "0"
    page.locator(".forming a", has_text="Back to the newest model").click()
    page.wait_for_function("() => document.querySelector('#about-title').textContent === 'mine'")


def test_without_a_history_there_is_no_tab(show, model):
    page = show(model, "#b=training&u=3")
    assert not page.locator("#tab-training").is_visible()
    assert page.locator("#tab-steps").get_attribute("aria-selected") == "true"


def test_a_missing_model_is_reported(pages, running, trained):
    with pages() as page:
        page.goto(running(trained[0]).url + "?update=3")
        page.locator("#problem", has_text="The model of update 3 was not kept").wait_for()
