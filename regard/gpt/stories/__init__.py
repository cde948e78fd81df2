"""A world of short stories in which it is known which earlier words decide a word.

`story(seed)` tells one, with its links; `check(text)` reads one, and says what contradicts what.
"""

from regard.gpt.stories._accuracy import Accuracy, Predict, accuracy, bigram, likeliest
from regard.gpt.stories._check import Mistake, Review, check, review
from regard.gpt.stories._generate import corpus, stories, story
from regard.gpt.stories._story import Fact, Kind, Link, Story

__all__ = [
    "Accuracy",
    "Fact",
    "Kind",
    "Link",
    "Mistake",
    "Predict",
    "Review",
    "Story",
    "accuracy",
    "bigram",
    "check",
    "corpus",
    "likeliest",
    "review",
    "stories",
    "story",
]
