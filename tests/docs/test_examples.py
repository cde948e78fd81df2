"""What the demo and `regard explain` show without a text is right for its reason."""

from pathlib import Path

import pytest
import torch

from regard.explorer.example import EXAMPLE
from regard.gpt import load

MAKEFILE = Path(__file__).parents[2] / "Makefile"


@pytest.mark.parametrize("place", ["well", "stairs", "tower"])
def test_the_last_word_is_the_one_that_was_said_first(place):
    model, tokenizer = load()
    said = EXAMPLE.replace("well", place)  # the first time; the second is asked for
    assert said.count(place) == 1
    next_token = model(torch.tensor(tokenizer.encode(said)))[-1].argmax()
    assert tokenizer.decode([int(next_token)]) == f" {place}"


def test_the_demo_shows_that_text():
    assert EXAMPLE in " ".join(MAKEFILE.read_text("utf-8").replace("\\\n", "").split())
