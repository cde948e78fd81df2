"""Swap: a word that is clicked, another in its place, and what becomes of the answer."""

import re

import pytest
import torch

import regard
from regard.page.example import EXAMPLES
from regard.page.subjects import ModelSubject

# Of each example, which occurrence of which word decides its answer, and the word in its place.
DECIDES = {
    "a rhyme": ("bat", 0, "snail"),
    "a pronoun": ("he", 0, "she"),
    "copying": ("kite", 0, "drum"),
    "who has it?": ("guitar", 1, "kite"),
}
REST = ["a pronoun", "copying", "who has it?"]
ARC = "(key) => document.querySelectorAll(`.arcs path.${key}`).length"


@pytest.fixture(scope="module")
def reader(shipped):
    """The shipped model over its first example."""
    return ModelSubject(*shipped, title="the model")


def swapped(text, word, occurrence, other):
    places = [one.start() for one in re.finditer(rf"\b{word}\b", text)]
    at = places[occurrence]
    return text[:at] + other + text[at + len(word) :], at


def plain(text):
    return text.translate({0x2068: "", 0x2069: ""})


def click(page, settled, word, occurrence=0):
    page.locator("#tokens .token", has_text=re.compile(rf"^\s*{word}$")).nth(occurrence).click()
    settled(page)


def swap(page, settled, other):
    """Choose the word if it is offered, else type it."""
    chips = page.locator("#swap-words button", has_text=re.compile(f"^{other}$"))
    if chips.count():
        chips.click()
    else:
        page.locator("#swap-word").fill(other)
        page.keyboard.press("Enter")
    page.locator("#swap-told").wait_for()
    return settled(page)


@pytest.fixture
def told(in_words):
    """What the page says of the answers of two runs."""

    def write(now, then, old):
        (_, piece, p), (_, before, q) = now.following[0], then.following[0]
        return f"{piece.strip()} {in_words(p)} — was {before.strip()} {in_words(q)} with “{old}”."

    return write


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["a rhyme", *REST])
def test_an_example_changes_its_answer_by_the_word_that_decides_it(
    show, settled, reader, told, name
):
    word, occurrence, other = DECIDES[name]
    text, _ = swapped(EXAMPLES[name], word, occurrence, other)
    then, now = reader.read(EXAMPLES[name]), reader.read(text)
    assert now.following[0][0] != then.following[0][0]
    page = show(reader, "")
    if name != "a rhyme":  # which is open at first
        page.locator("#examples button", has_text=name).click()
        settled(page)
    click(page, settled, word, occurrence)
    swap(page, settled, other)
    assert plain(page.locator("#swap-says").text_content()) == told(now, then, word)
    assert page.locator("#tokens > .former").text_content().strip() == word
    assert page.locator("#tokens .swapped").text_content().strip() == other
    likely = page.locator("#predictions button").filter(has_text=now.following[0][1].strip())
    assert likely.first.locator(".bar").count() == 2  # as it was and as it is


def test_a_swap_is_kept_in_the_address_and_taken_back(show, settled, reader, told):
    text = EXAMPLES["who has it?"]
    page = show(reader, f"#t={text}&p=opening")
    click(page, settled, "guitar", 1)
    swap(page, settled, "kite")
    other, at = swapped(text, "guitar", 1, "kite")
    then, now = reader.read(text), reader.read(other)
    says = told(now, then, "guitar")
    # The head that is shown looked elsewhere before: that arc stays, faint.
    address = page.evaluate("location.hash")
    assert f"m={at}%2C4%2Cguitar" in address
    layer, head = map(int, re.search(r"l=(\d)&h=(\d)", address).groups())
    last = len(now.tokens) - 1
    keys = [int(run.row(layer, head, last).argmax()) for run in (then, now)]
    assert keys[0] != keys[1]
    assert page.evaluate(ARC, "former") == 1
    # A link opens it again.
    again = show(reader, address)
    assert plain(again.locator("#swap-says").text_content()) == says
    assert again.locator("#tokens > .former").text_content().strip() == "guitar"
    # The browser's Back takes it back, Forward makes it again, and so do the buttons.
    page.evaluate("history.back()")
    page.locator("#swap-told").wait_for(state="hidden")
    assert settled(page).locator("#tokens").text_content() == text
    page.evaluate("history.forward()")
    page.locator("#swap-told").wait_for()
    assert plain(settled(page).locator("#swap-says").text_content()) == says
    page.locator("#swap-back").click()
    page.locator("#swap-told").wait_for(state="hidden")
    assert settled(page).locator("#tokens").text_content() == text
    assert "m=" not in page.evaluate("location.hash")


@pytest.mark.thorough
def test_patching_shows_what_each_head_brings_back(show, settled, reader):
    text = EXAMPLES["who has it?"]
    page = show(reader, f"#t={text}&p=opening")
    click(page, settled, "guitar", 1)
    swap(page, settled, "kite")
    page.locator("#patch").click()
    page.locator("#patched .squares").wait_for()
    now, then = (reader.read(one) for one in (swapped(text, "guitar", 1, "kite")[0], text))
    answer = reader.patch(now, then.id, lambda *_: None)
    whole = answer["other"] - answer["unchanged"]
    parts = {
        (layer, head): value / whole
        for layer, row in enumerate(answer["values"])
        for head, value in enumerate(row)
    }
    squares = (
        settled(page)
        .locator("#patched .squares button")
        .evaluate_all(
            "(all) => all.map(({ dataset, title }) => [dataset.layer, dataset.head, title])"
        )
    )
    shown = {
        (int(layer), int(head)): float(re.search(r": (\S+) of", title)[1].replace("−", "-"))
        for layer, head, title in squares
    }
    assert shown == pytest.approx(parts, abs=0.0051)
    (layer, head), most = max(parts.items(), key=lambda one: abs(one[1]))
    says = plain(page.locator("#patched .says").text_content())
    assert f"head {layer}·{head} alone brings back {most:.2f} of the change" in says
    # A square goes to its head.
    page.locator(f"#patched [data-layer='{layer}'][data-head='{head}']").click()
    page.wait_for_function("(place) => location.hash.includes(place)", arg=f"l={layer}&h={head}")
    # Texts of unlike length say why they can't be patched; the button stays.
    click(page, settled, "kite", 1)
    swap(page, settled, "green kite")
    assert page.locator("#patch").get_attribute("aria-disabled") == "true"
    why = plain(page.locator("#patch-note").text_content())
    assert why.startswith("Patch needs equal positions: with “guitar” the text has 20 tokens, ")
    page.locator("#patch").click(force=True)
    assert settled(page).locator("#patched").is_hidden()


@pytest.mark.thorough
def test_a_live_report_swaps_and_patches_with_its_own_model(pages, settled, shipped, tmp_path):
    model, tokenizer = shipped
    path, text = tmp_path / "live.html", EXAMPLES["who has it?"]
    regard.report(model, path, title="the model", tokenizer=tokenizer, text=text, live=True)
    with pages(viewport={"width": 1440, "height": 900}, offline=True) as page:
        page.goto(path.as_uri())
        page.locator("#tokens .token").first.wait_for()
        click(settled(page), settled, "guitar", 1)
        swap(page, settled, "kite")
        assert plain(page.locator("#swap-says").text_content()).startswith("Adam over 0.99 — was ")
        page.locator("#patch").click()
        page.locator("#patched .squares").wait_for()
        assert " alone brings back " in page.locator("#patched .says").text_content()
        page.locator("#swap-back").click()
        page.locator("#swap-told").wait_for(state="hidden")
        assert settled(page).locator("#tokens").text_content() == text


@pytest.mark.thorough
def test_a_report_without_a_model_offers_no_swap(pages, settled, make_recording, tmp_path):
    given = [tuple(torch.randn(2, 1, 3, 7, 5, generator=torch.Generator().manual_seed(0)))]
    recording = make_recording(given, tokens=[f" t{n}" for n in range(7)])
    path = tmp_path / "report.html"
    regard.report(recording, path, title="a recording")
    with pages(viewport={"width": 1440, "height": 900}, offline=True) as page:
        page.goto(path.as_uri())
        page.locator("#tokens .token").nth(3).click()
        assert settled(page).locator("#swap").is_hidden()
