"""Sentences that are shown as examples are right for their reason.

Each is decided by one word: with another in its place the model that comes with the package says
what that one asks for. Who swaps the word sees that.
"""

import re
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from regard.explorer.example import EXAMPLE, EXAMPLES
from regard.gpt import load

ROOT = Path(__file__).parents[2]


class Example(NamedTuple):
    """Where a sentence is shown, its answer, and others by the word that takes the decider's place.

    Args:
        files: where it stands.
        text: the sentence up to the answer.
        answer: what it goes on with.
        decider: the word that decides it.
        others: the answer by the word in the decider's place.
    """

    files: str
    text: str
    answer: str
    decider: str
    others: dict[str, str]


SHOWN = [
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


def swapped(text, old, new):
    """A text with another word in the last place of one, and in any before that it decides."""
    return re.sub(rf"\b{old}\b(?!.*\b{old}\b)", new, text, flags=re.DOTALL)


@pytest.mark.parametrize("one", SHOWN, ids=lambda one: one.text[:40])
def test_the_answer_flips_with_the_word_that_decides_it(says, one):
    assert says(one.text, one.answer) == one.answer
    for word, answer in one.others.items():
        assert says(swapped(one.text, one.decider, word), answer) == answer


@pytest.mark.parametrize("one", SHOWN, ids=lambda one: one.text[:40])
def test_the_sentence_stands_where_it_is_said_to(one):
    for file in one.files.split():
        text = (ROOT / file).read_text("utf-8")
        joined = re.sub(r'["\']\s*\n\s*["\']', "", text)  # strings that go on in the next line
        assert one.text in re.sub(r"\s+", " ", joined.replace('\\"', '"')), file


def test_every_text_that_a_command_is_shown_with_is_among_them():
    texts = {one.text for one in SHOWN} | {"Once upon a time", "Once upon", "…", "some text"}
    for file in [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("regard/cli/*.py")]:
        shown = file.read_text("utf-8")
        for given in re.findall(r'regard (?:explain|effects|explore|report|generate)\b.*?"([^"\n]+)"', shown):
            assert given in texts or "$" in given, f"{file.name}: {given}"
