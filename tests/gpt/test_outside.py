"""Whether a text lies outside of what the shipped model has read."""

import re

import pytest
import torch

from regard.gpt import load
from regard.gpt.outside import FEWEST, is_outside
from regard.gpt.stories import stories
from regard.page.example import EXAMPLE, EXAMPLES

FAR = [
    "The president of the United States said that",
    "The capital of France is Paris and the capital of Germany is",
    "Mary had a little lamb, its fleece was white as",
    "The stock market fell sharply on Monday as investors",
    "In 1969 Neil Armstrong became the first man to walk on the",
    "Der Hund läuft durch den Garten und",
]


@pytest.fixture(scope="module")
def shipped():
    return load()


@pytest.mark.parametrize("text", FAR)
def test_what_no_story_says_lies_outside(shipped, text):
    model, tokenizer = shipped
    assert is_outside(model, tokenizer.encode(text))


@pytest.mark.parametrize("text", [EXAMPLE, *EXAMPLES.values()])
def test_what_the_page_shows_lies_inside(shipped, text):
    model, tokenizer = shipped
    ids = tokenizer.encode(text)
    answer = model(torch.tensor(ids))[-1].softmax(dim=-1).max().item()
    assert not is_outside(model, ids, answer)


def test_stories_and_their_beginnings_lie_inside(shipped):
    model, tokenizer = shipped
    texts = [story.text for story in stories(0, 11)]
    texts += [" ".join(re.split(r"(?<=[.!?]) ", text)[:2]) for text in texts]
    assert not any(is_outside(model, tokenizer.encode(text)) for text in texts)


def test_a_few_tokens_say_too_little(shipped):
    model, tokenizer = shipped
    ids = tokenizer.encode(FAR[0])
    assert not is_outside(model, ids[: FEWEST - 1])
    assert not is_outside(model, tokenizer.encode("Once upon a time"))
    assert not is_outside(model, [])


def test_an_answer_that_the_model_is_sure_of_is_no_guess(shipped):
    model, tokenizer = shipped
    ids = tokenizer.encode(FAR[0])
    assert is_outside(model, ids, 0.49)
    assert not is_outside(model, ids, 0.5)


def test_of_a_long_text_the_end_counts(shipped):
    model, tokenizer = shipped
    far = tokenizer.encode(FAR[3]) * (model.config.context // 8)
    near = tokenizer.encode(" ".join(story.text for story in stories(0, 20)))
    assert len(near) > model.config.context
    assert not is_outside(model, far + near)
