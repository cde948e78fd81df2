"""Passages on the page: what the next token looks at and needs of each, and where it stands."""

import re

import pytest

import regard
from regard.gpt.stories import story as story_of
from regard.lens import token_offsets
from regard.page.subjects import ModelSubject


@pytest.fixture(scope="module")
def story(shipped):
    """A story up to the word that it asks for, and its paragraphs but the last on its tokens."""
    text = story_of(6125).text
    text = text[: text.rindex(" barn.")]
    _, tokenizer = shipped
    offsets = token_offsets(tokenizer.tokens(tokenizer.encode(text)))
    return text, regard.lens.split_passages(text[: text.rindex("\n\n")], offsets)


@pytest.fixture(scope="module")
def subject(shipped, story):
    return ModelSubject(*shipped, title="the model", text=story[0])


def test_passages_stand_in_the_order_of_need_and_a_click_marks_one_in_the_text(
    show, settled, written, subject, story
):
    _, passages = story
    page = show(subject)
    assert page.locator("#passages-panel").is_hidden()
    page.locator("#passages").click()
    settled(page)
    run = subject.run(subject.about()["runs"][0])
    measured = subject.passages(run, [p.tokens for p in passages], lambda *_: None)
    order = sorted(range(len(passages)), key=measured["effects"].__getitem__)
    rows = page.locator("#passages-list button")
    assert rows.count() == len(passages)
    for row, number in zip(rows.all(), order, strict=True):
        quote = row.locator(".quote").text_content()
        assert passages[number].text.startswith(quote.split("…")[0])
        assert row.locator("b").text_content().startswith(written(measured["weights"][number]))
    assert "Dad had taken the bead into the barn" in passages[order[0]].text
    assert "None of them is needed" not in page.locator("#passages-note").text_content()
    widths = page.locator("#passages-list .bar").evaluate_all(
        "(all) => all.map((b) => b.style.width)"
    )
    looked = [float(width.removesuffix("%")) for width in widths[::2]]
    most = max(measured["weights"])
    assert looked == pytest.approx([100 * measured["weights"][k] / most for k in order], abs=0.01)
    note = page.locator("#passages-note").text_content()
    assert re.search("what \u2068[^␣]+\u2069 loses", note)
    # A click marks the passage's tokens, another one takes the mark away.
    rows.first.click()
    marked = page.locator("#tokens .in-passage").evaluate_all(
        "(all) => all.map((t) => +t.dataset.at)"
    )
    assert marked == list(range(*passages[order[0]].tokens))
    assert rows.first.get_attribute("aria-pressed") == "true"
    rows.first.click()
    assert page.locator("#tokens .in-passage").count() == 0
    page.locator("#passages").click()
    settled(page)
    assert page.locator("#passages-panel").is_hidden()


@pytest.mark.thorough
def test_a_single_paragraph_is_cut_into_sentences_and_passages_end_with_their_text(
    show, settled, shipped
):
    text = "Ann had a red kite. Ben had a blue ball! Who had the kite? It was"
    page = show(ModelSubject(*shipped, title="the model", text=text))
    page.locator("#passages").click()
    settled(page)
    quotes = page.locator("#passages-list .quote").all_text_contents()
    assert sorted(quotes) == ["Ann had a red kite.", "Ben had a blue ball!", "Who had the kite?"]
    page.locator("#predictions button").first.click()
    settled(page)
    assert page.locator("#passages-panel").is_hidden()
    assert page.locator("#passages").text_content() == "Which passages?"


@pytest.mark.thorough
def test_a_text_of_one_sentence_has_no_passages(show, settled, shipped):
    page = show(ModelSubject(*shipped, title="the model", text="Only one sentence is"))
    page.locator("#passages").click()
    settled(page)
    assert "single sentence" in page.locator("#problem").text_content()


def test_where_no_passage_is_needed_it_says_so(show, settled, shipped):
    text = "Tom had a red kite. The cat sat on the mat. The cat sat"
    page = show(ModelSubject(*shipped, title="the model", text=text))
    page.locator("#passages").click()
    note = settled(page).locator("#passages-note").text_content()
    assert note.endswith("None of them is needed for \u2068on\u2069.")
