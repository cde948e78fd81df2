"""The text: whole words, what is looked at in sight, shading that says how sure a head is."""

from itertools import pairwise

import pytest
import torch

from regard.page import RecordingSubject

pytestmark = pytest.mark.thorough

PROSE = (
    "The manager wraps conveniently whatever execution needs: patterns, statements, conveniences. "
)
LINES = """() => [...document.querySelectorAll("#tokens .word")].map((one) => {
  const boxes = [...one.getClientRects()];
  return [one.parentElement.textContent, boxes.at(0)?.top, boxes.at(-1)?.top];
})"""
INSIDE = """([inner, outer]) => {
  const [box, around] =
    [inner, outer].map((name) => document.querySelector(name).getBoundingClientRect());
  return box.height > 0 && box.top >= around.top - 1 && box.bottom <= around.bottom + 1;
}"""


@pytest.fixture
def wordy(shipped):
    from regard.page import ModelSubject

    return ModelSubject(*shipped, title="the model", text=PROSE * 12)


@pytest.mark.parametrize("width", [390, 1440])
def test_words_are_whole_at_the_ends_of_lines(show, wordy, width):
    page = show(wordy, width=width)
    tokens = page.evaluate(LINES)
    assert len({top for _, top, _ in tokens}) > 8
    torn = [
        (before, after)
        for (before, _, end), (after, start, _) in pairwise(tokens)
        if start != end and not after.startswith(" ") and not before.endswith((" ", "␣"))
    ]
    assert torn == []
    assert all(start == end for text, start, end in tokens if text.strip().isalpha())


def test_the_token_that_is_looked_at_is_in_sight_with_the_legend_and_what_comes_next(show, wordy):
    page = show(wordy)
    assert page.locator("#tokens .token").count() > 250
    assert page.locator("#tokens").evaluate("(one) => one.scrollHeight > one.clientHeight")
    for part, within in [
        ("#tokens .token.query .word", "#tokens"),
        ("#legend", "#text-panel"),
        ("#predictions li", "#text-panel"),
        ("#generate", "#text-panel"),
    ]:
        assert page.evaluate(INSIDE, [part, within]), part
    page.keyboard.press("Home")
    page.wait_for_selector("html[data-settled=true]")
    assert page.evaluate(INSIDE, ["#tokens .token.query .word", "#tokens"])


def test_the_last_token_is_attended_to_by_nothing_and_that_is_said(show, model):
    page = show(model)
    assert page.locator("#legend samp").last.text_content() == "nothing: it is the last"


def test_the_strongest_key_is_shown_where_none_is_chosen(show, settled, written, model):
    run = model.run(model.about()["runs"][0])
    page = show(model, "#l=1&h=1&q=9")
    row = run.row(1, 1, 9)
    key = int(row.argmax())
    facts = page.locator("#cross dd").all_text_contents()
    assert facts[1].split()[0] == str(key)
    assert facts[2] == written(float(row.max()))
    assert "strongest key" in page.locator("#cross .note").text_content()
    assert "k=" not in page.evaluate("location.hash")  # it is shown, not chosen
    page.locator("#tokens .token[data-at='2']").click(modifiers=["Shift"])
    page.mouse.move(2, 2)  # what is under the pointer goes before what is chosen
    settled(page)
    assert page.locator("#cross dd").nth(1).text_content().startswith("2 ")
    assert page.locator("#cross .note").count() == 0


def test_a_head_that_looks_everywhere_alike_is_pale(show, make_recording):
    even, sharp = torch.zeros(1, 1, 41, 5), torch.zeros(1, 1, 41, 5)
    sharp[..., 0] = torch.eye(41)[:, 7] * 30  # key 7 takes nearly all
    query = torch.zeros(1, 2, 41, 5)
    query[:, :, :, 0] = 5
    recording = make_recording([(query, torch.cat([even, sharp], dim=1))])
    subject = RecordingSubject(recording, title="even and sharp")
    depth = """() => [...document.querySelectorAll("#tokens .token")].map((one) =>
      Number(/([\\d.]+)%/.exec(one.style.backgroundColor)?.[1] ?? 0))"""
    assert 0 < max(show(subject, "#h=0").evaluate(depth)) < 15
    assert max(show(subject, "#h=1").evaluate(depth)) > 50


def test_characters_stand_over_the_bytes_that_they_are_cut_into(show, settled, model):
    page = show(model)
    text = "naïve 😀 漢字 שלום"
    page.locator("#edit").click()
    page.locator("#entry-text").fill(text)
    page.locator("#entry-run").click()
    page.locator("#entry").wait_for(state="hidden")
    settled(page)
    over = page.locator("#tokens ruby rt").all_text_contents()
    assert over == [character for character in text if not character.isascii()]
    emoji = page.locator("#tokens ruby", has_text="😀").locator(".token")
    assert " ".join(emoji.all_text_contents()) == "F0 9F 98 80"
    assert emoji.first.get_attribute("aria-label").endswith(": F0, of 😀")
    # Bytes that are no character stay what they are.
    assert page.locator("#tokens .token").count() == len(model.read(text).tokens)


def test_bytes_that_are_no_character_are_written_as_they_are(show, make_recording):
    tokens = ["<0xE2>", "<0x80>", "a", "<0xC3>", "<0xA9>", "<0xA9>", "<0xFF>"]
    given = torch.randn(1, 2, 1, 1, len(tokens), 5, generator=torch.Generator().manual_seed(0))
    page = show(RecordingSubject(make_recording(given, tokens=[tokens]), title="bytes"))
    assert page.locator("#tokens rt").all_text_contents() == ["é"]
    shown = page.locator("#tokens .token").all_text_contents()
    assert shown == [*tokens[:3], "C3", "A9", *tokens[5:]]
