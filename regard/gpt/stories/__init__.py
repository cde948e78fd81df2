"""A generator of short stories with ground truth on which earlier words determine a word.

`story(seed)` generates one, with its links; `check(text)` finds contradictions in a text.
"""

from regard.gpt.stories._check import Mistake, Review, check, review
from regard.gpt.stories._generate import corpus, stories, story
from regard.gpt.stories._order import OrderGuesser
from regard.gpt.stories._story import Fact, Kind, Link, Story
from regard.gpt.stories._twins import twins

__all__ = [
    "Fact",
    "Kind",
    "Link",
    "Mistake",
    "OrderGuesser",
    "Review",
    "Story",
    "check",
    "corpus",
    "review",
    "stories",
    "story",
    "twins",
]
