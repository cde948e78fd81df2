"""Exercises of page 0."""

from collections import Counter
from itertools import pairwise

import torch

from regard_course._exercise import Answer, Function, Mistake

__all__ = ["EXERCISES", "TITLE"]

TITLE = "Why look back"


def _most_common_after(words: list[str], word: str) -> str:
    return Counter(after for before, after in pairwise(words) if before == word).most_common(1)[0][
        0
    ]


def _most_common_before(words: list[str], word: str) -> str:
    return _most_common_after(words[::-1], word)


def _last_after(words: list[str], word: str) -> str:
    return [after for before, after in pairwise(words) if before == word][-1]


def _looked_at(tokens: list[str], weights: torch.Tensor) -> str:
    return tokens[int(weights.argmax())]


def _sentences() -> list[tuple[list[str], str]]:
    texts = [
        ("the lamp and the kite and the lamp and the drum", "the"),
        ("a red fox saw the red kite and the red kite saw the old fox", "red"),
        ("a red fox saw the red kite and the red kite saw the old fox", "the"),
    ]
    return [(text.split(), word) for text, word in texts]


def _weights() -> list[tuple[list[str], torch.Tensor]]:
    return [
        (["Anna", "lost", "the", "kite", "."], torch.tensor([0.1, 0.2, 0.05, 0.6, 0.05])),
        (["Tom", "ran"], torch.tensor([0.7, 0.3])),
    ]


EXERCISES = (
    Answer(
        "0.1",
        kind="predict",
        title="The word after “but nobody had seen the silver”",
        expected="kite",
        hint="What of Anna’s was silver?",
        mistakes=(
            Mistake("the nearest thing", "kitchen", "She looked in it. What was she looking for?"),
            Mistake(
                "the other thing", "drum", "She had lost that too. Which of the two was silver?"
            ),
            Mistake("the person", "Anna", "Nobody needed to look for Anna."),
        ),
    ),
    Answer(
        "0.2",
        kind="predict",
        title="How often “kite” follows “silver” in the stories",
        expected="one time in fifty",
        hint="How many things are there that could be silver?",
        mistakes=(
            Mistake(
                "this sentence taken for all",
                "half of the time",
                "“Silver” stands before any thing of the stories.",
            ),
            Mistake(
                "too few things",
                "one time in ten",
                "There are more than a hundred things, and each can be silver.",
            ),
        ),
    ),
    Answer(
        "0.3",
        kind="predict",
        title="The guess after “doll” has taken the place of “kite”",
        expected="doll",
        hint="Does it take the word from what it once read, or from this sentence?",
        mistakes=(
            Mistake("a memory", "kite", "Nothing in the sentence speaks of a kite any more."),
            Mistake("the nearer thing", "drum", "The drum is red."),
        ),
    ),
    Answer(
        "0.4",
        kind="by hand",
        title="The share of “kite” among what follows “the”",
        expected=0.5,
        tolerance=0.006,
        hint="How often does “the” occur, and how often is the next word “kite”?",
        mistakes=(
            Mistake("a count", 2.0, "That is how often. Divide by the number of “the”."),
            Mistake("among all words", 2 / 11, "Only the words after “the” are counted, four."),
            Mistake("each word once", 1 / 3, "Kite stands there twice, and counts twice."),
        ),
    ),
    Answer(
        "0.5",
        kind="by hand",
        title="The number of weights of 29 tokens that look back, in one head",
        expected=435.0,
        hint="The first token gives one weight, the second two, the last 29.",
        mistakes=(
            Mistake("forward as well", 841.0, "No token looks at the ones after it."),
            Mistake("itself left out", 406.0, "A token gives a weight to itself too."),
            Mistake("the last token alone", 29.0, "All 29 tokens have such a list."),
        ),
    ),
    Function(
        "0.6",
        title="most_common_after(words, word): the word that follows a word most often",
        name="most_common_after",
        reference=_most_common_after,
        cases=_sentences,
        hint="zip(words, words[1:]) gives each word with the next; collections.Counter counts.",
        mistakes=(
            Mistake("the word before", _most_common_before, "What comes after is asked for."),
            Mistake(
                "the most common word of all",
                lambda words, _: Counter(words).most_common(1)[0][0],
                "Count only the words that stand after the one that is given.",
            ),
            Mistake("the last one, uncounted", _last_after, "Count all of them."),
        ),
    ),
    Function(
        "0.7",
        title="looked_at(tokens, weights): the token with the largest weight",
        name="looked_at",
        reference=_looked_at,
        cases=_weights,
        hint="weights.argmax() is the place of the largest one.",
        mistakes=(
            Mistake(
                "the place for the token",
                lambda _, weights: int(weights.argmax()),
                "That is where it stands. Take the token there: tokens[…].",
            ),
            Mistake(
                "the weight for the token",
                lambda _, weights: weights.max(),
                "That is how much. argmax says where.",
            ),
            Mistake(
                "the smallest", lambda tokens, weights: tokens[int(weights.argmin())], "argmax."
            ),
        ),
    ),
    Answer(
        "0.8",
        kind="break",
        title="What becomes of the weight on “kite” without the colours",
        expected="less than half",
        hint=(
            "Run the code with the changed sentence. What would you look back for, if the last "
            "word is “the”?"
        ),
        mistakes=(
            Mistake(
                "fewer words taken for easier",
                "larger",
                "It looked for what had been silver. Nothing is silver now.",
            ),
            Mistake(
                "what was lost is always looked for",
                "about the same",
                "Two things were lost, and “the” goes with either.",
            ),
        ),
    ),
)
