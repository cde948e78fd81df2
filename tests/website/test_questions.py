"""Twenty questions: each has an answer, and the site compares what a reader says at two times."""

import re

import pytest
from regard_site.markup import render
from regard_site.sources import ROOT

TEXT = (ROOT / "docs/questions.md").read_text("utf-8")


def test_each_question_has_choices_an_answer_and_its_proof():
    questions = re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]
    assert [int(one.split(" ")[0]) for one in questions] == list(range(1, 21))
    for one in questions:
        right = int(re.search(r"<!-- question right=(\d) -->", one)[1])
        choices = re.findall(r"^\d\. .+$", one, flags=re.MULTILINE)
        assert len(choices) == 4 >= right
        assert f"<summary>Answer</summary>\n\n**{right}.** " in one
        assert ".md" in one, "a page that shows it"
        assert "assert" in one, "code that proves it"


def test_no_choice_is_right_more_often_than_another_by_much():
    rights = re.findall(r"right=(\d)", TEXT)
    assert {4, 5, 6} >= {rights.count(choice) for choice in "1234"}


def test_a_question_without_a_right_choice_is_refused():
    with pytest.raises(ValueError, match="says which choice is right"):
        render("text\n\n<!-- question -->\n", link=str)


def answer(page, rights, known):
    """Choose the right choice of the first so many questions, and “I don't know” of the rest."""
    for at, right in enumerate(rights):
        chosen = right if at < known else 0
        page.locator("fieldset").nth(at).locator(f"input[value='{chosen}']").check()


def test_an_answer_on_another_page_is_not_overwritten(show):
    from playwright.sync_api import expect

    page = show("questions.html")
    other = page.context.new_page()
    other.goto(page.url)
    page.locator("fieldset").nth(0).locator("input[value='2']").check()
    said = other.get_by_role("status").first
    expect(said).to_contain_text("1 of 20")
    other.locator("fieldset").nth(1).locator("input[value='3']").check()
    expect(said).to_contain_text("2 of 20")
    expect(page.get_by_role("status").first).to_contain_text("2 of 20")


@pytest.mark.thorough
def test_answers_of_two_times_are_kept_and_compared(show):
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import expect

    page = show("questions.html", width=390)
    rights = page.locator(".question").evaluate_all("(all) => all.map((one) => one.dataset.right)")
    said = page.get_by_role("status").first
    answers = page.locator(".verdict + details")
    assert "0 of 20" in said.inner_text()
    assert not answers.first.is_visible()

    page.locator("fieldset input").first.focus()  # by key: the second choice, then on
    page.keyboard.press("ArrowDown")
    assert "1 of 20" in said.inner_text()
    second = page.locator("fieldset").first.locator("input").nth(1)
    for _ in range(5):  # under load Chromium may open a page before it has what was written
        page.reload()
        if second.is_checked():
            break
    expect(second).to_be_checked()
    assert second.get_attribute("autocomplete") == "off"  # else by the browser, not by the page
    answer(page, rights, known=8)
    page.get_by_role("button", name="Finish").click()
    assert "8 of 20 were right" in said.inner_text()
    assert not answers.first.is_visible()  # the second time would ask for what was read

    answer(page, rights, known=17)
    page.get_by_role("button", name="Finish").click()
    assert said.inner_text() == "Right before: 8 of 20. After: 17 of 20, 9 more."
    assert page.locator(".questions tr.changed").count() == 9
    assert answers.first.is_visible()
    assert page.evaluate("Object.keys(localStorage)") == ["regard-questions"]
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    axe = Axe().run(page, options={"preload": False})
    assert axe.violations_count == 0, axe.generate_report()

    page.get_by_role("button", name="Forget my answers").click()
    assert "0 of 20" in said.inner_text()
    assert page.evaluate("localStorage.length") == 0
