"""Beside a field in the page nothing sends the reader to a shell; a function has the notebook."""

import re

import pytest
from regard_course import Answer, exercise
from regard_site.markup import render

MARKED = re.compile(r'<span class="shell">.*?</span>', flags=re.DOTALL)
BLOCK = re.compile(
    r'<div class="exercise" id="exercise-(\w+-\d+)">\n(.*?)<details>', flags=re.DOTALL
)


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("What is it? Check it with `regard check 1.3 NUMBER`.", "What is it? Check it."),
        ("Is it so? Answer with\n`regard check 1.3 no`, or what you think.", "Is it so? Answer."),
        ("Say why, and check it with `regard check 1.3 A B`.", "Say why, and check it."),
        ("Is it 0.5? (In a shell: `regard check 1.3 x`, or what you see.)", "Is it 0.5?"),
        ("Say it first: `regard check 1.3 1` says whether it is 1.", "Say it first."),
        (
            "What is it? `regard check 1.3 0.5` checks ½; put yours there. Go on.",
            "What is it? Go on.",
        ),
        ("Check *it* with `regard check 1.3 5`, yours in place of 5.", "Check <em>it</em>."),
    ],
)
def test_what_is_said_of_the_shell_is_marked(said, left):
    text = (
        f"**Exercise 1.3** (by hand). {said}\n\n<details><summary>Hint</summary>\n\nh\n\n</details>"
    )
    (block,) = BLOCK.findall(render(text, link=str).html)
    paragraph = re.search(r"<p>(.*?)</p>", block[1], flags=re.DOTALL)[1]
    assert MARKED.sub("", paragraph) == f"<strong>Exercise 1.3</strong> (by hand). {left}"
    as_it_was = re.sub(r"</?(span|code)[^>]*>", "", paragraph).partition(". ")[2]
    assert as_it_was.replace("<em>it</em>", "*it*") == said.replace("`", "")


def test_no_exercise_with_a_field_sends_its_reader_to_the_shell(site):
    found = {
        number.replace("-", "."): block
        for path in site.glob("[0-9]*.html")
        for number, block in BLOCK.findall(path.read_text("utf-8"))
    }
    assert len(found) > 100
    for number, block in found.items():
        if isinstance(exercise(number), Answer):
            assert "regard check" not in MARKED.sub("", block), number
        else:
            assert "regard check" in MARKED.sub("", block), number


def test_a_function_can_be_written_in_the_notebook_where_the_site_has_one(site):
    link = '<p><a href="notebooks/05-causal-mask.ipynb" download>This page as a notebook</a> has'
    blocks = dict(BLOCK.findall((site / "05-causal-mask.html").read_text("utf-8")))
    assert [number for number, block in blocks.items() if link in block] == ["5-5", "5-6"]
    assert "as a notebook</a>" not in (site / "06-dropout.html").read_text("utf-8")
