"""Sentences that are shown as examples are right for their reason.

Each is decided by one word: with another in its place the model that comes with the package says
what that one asks for. Who swaps the word sees that.
"""

import re
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from regard.gpt import load

ROOT = Path(__file__).parents[2]


class Example(NamedTuple):
    """Where a sentence is shown, its answer, and others by the word that takes the decider's place.

    Args:
        files: where it stands.
        text: the sentence up to the answer.
        answer: what it goes on with.
        decider: the word that decides it.
        others: the answer by the word that takes its place.
    """

    files: str
    text: str
    answer: str
    decider: str
    others: dict[str, str]


SHOWN = [
    Example(
        "README.md docs/explore.md docs/effects.md docs/16-is-attention-an-explanation.md "
        "docs/17-from-a-weight-to-the-answer.md docs/moved.md regard/cli/explain.py "
        "regard/cli/effects.py course/regard_site/front.py course/regard_site/slides.md",
        "Tom had a red kite and a blue drum. Tom wanted the blue",
        " drum",
        "blue",
        {"red": " kite"},
    ),
    Example(
        "docs/00-why-look-back.md docs/13-fused-attention.md docs/effects.md docs/demo.py",
        "Anna had lost a silver kite and a red drum, and she looked in the garden and then in the "
        "kitchen, but nobody had seen the silver",
        " kite",
        "silver",
        {"red": " drum"},
    ),
    Example(
        "regard/page/example.py",
        "Hannah had a cat called Sooty, and Finn had a dog called Noodle. Finn said, "
        '"Let us go home." Then he stroked',
        " Noodle",
        "he",
        {"she": " Sooty"},
    ),
    Example(
        "regard/page/example.py docs/teaching.md docs/17-from-a-weight-to-the-answer.md",
        'A green parrot lived in the tent. Leila said to it, "Who has hidden the red kite?" They '
        'listened. Back came the same words, "Who has hidden the red',
        " kite",
        "kite",
        {"drum": " drum", "boat": " boat", "lamp": " lamp"},
    ),
    Example(
        "docs/teaching.md course/regard_site/slides.md",
        'Oliver was carrying a strange guitar. "May I hold it?" asked Olivia. Oliver nodded',
        " his",
        "Oliver",
        {"Olivia": " her"},
    ),
    Example(
        "docs/effects.md",
        "Ella left her hat in the stable, and Henry left his kite in the shed. In the end Ella "
        "found the hat in the",
        " stable",
        "hat",
        {"kite": " shed"},
    ),
    Example(
        "docs/10-what-heads-learn.md",
        "In the morning Anna found a red kite and a blue boat. She picked up the red",
        " kite",
        "red",
        {"blue": " boat"},
    ),
    Example(
        "docs/11-positions.md regard/page/example.py",
        "The guitar was with Olivia. The kite was with Adam. At bedtime the guitar was still with",
        " Olivia",
        "guitar",
        {"kite": " Adam"},
    ),
    Example(
        "docs/16-is-attention-an-explanation.md Makefile regard/page/example.py",
        "In the primer there were two pictures that rhymed with animals. One rhymed with bat and "
        "one with snail, so they had to be",
        " hat",
        "bat",
        {"goat": " boat", "mouse": " house"},
    ),
]


@pytest.fixture(scope="module")
def says():
    """What the model goes on with, as many tokens as an answer has."""
    model, tokenizer = load()

    def goes_on(text, answer):
        ids = tokenizer.encode(text + answer)
        before = len(tokenizer.encode(text))
        said = model(torch.tensor(ids))[before - 1 : -1].argmax(dim=-1).tolist()
        return tokenizer.decode(said)

    return goes_on


def swapped(text, word, other):
    """A text in which another word stands where this one stood last."""
    return re.sub(rf"\b{word}\b(?!.*\b{word}\b)", other, text, flags=re.DOTALL)


@pytest.mark.parametrize("one", SHOWN, ids=lambda one: one.text[:40])
def test_the_answer_flips_with_the_word_that_decides_it(says, one):
    assert says(one.text, one.answer) == one.answer
    for word, answer in one.others.items():
        assert says(swapped(one.text, one.decider, word), answer) == answer


@pytest.mark.parametrize("place", ["attic", "cellar", "stable", "shed"])
def test_the_answer_about_a_document_flips_with_its_passage(says, place):
    page = (ROOT / "docs/trace.md").read_text("utf-8")
    names = {}
    exec(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1], names)
    text = names["text"]
    assert text.count("attic") == 1
    assert says(text.replace("attic", place), f" {place}") == f" {place}"


def plain(text):
    """A file's text in one line: strings and lines joined."""
    joined = re.sub(r"""["']\s*\n\s*["']|\\\n""", "", text)
    return re.sub(r"\s+", " ", joined.replace('\\"', '"'))


@pytest.mark.parametrize("one", SHOWN, ids=lambda one: one.text[:40])
def test_the_sentence_stands_where_it_is_said_to(one):
    for file in one.files.split():
        assert one.text in plain((ROOT / file).read_text("utf-8")), file


def test_every_text_that_a_command_is_shown_with_is_among_them():
    """Of commands that run the model that comes with the package."""
    texts = {one.text for one in SHOWN} | {"Once upon a time", "A sentence of your own."}
    command = re.compile(
        r'regard (?:explain|effects|explore|report|generate)\b(?!.*--model).*?"((?:\\.|[^"\n])+)"'
    )
    for file in [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("regard/cli/*.py")]:
        for given in command.findall(file.read_text("utf-8")):
            if len(given.split()) > 2:  # not the word of a target
                assert plain(given) in texts, f"{file.name}: {given}"
