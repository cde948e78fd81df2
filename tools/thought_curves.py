"""What `trace` finds through a line of thought, in lookups of two steps, and what is lost.

``python tools/thought_curves.py [MODEL]`` asks a model, smollm2 by default, where somebody's thing
is: one sentence of a document says in which box, another where that box is. A thought that repeats
both is given to it, and the last word behind it is explained, directly and through hops. How often
the model writes the thought itself, after examples, is counted; `docs/trace.md` has the tables. The
rows of sentences are what thought and word, and the word alone behind the thought as it is, lose in
nats if the end token replaces the first step, the second, or any other sentence. Those of orders
are the parts of the positive scores on the first step and on the second, and what thought and word
lose if the end token replaces the fifth of the document's tokens that is first.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

import regard
from passage_ranks import NEUTRAL
from regard.gpt import Sampling
from regard.lens import Answer
from regard.models import LanguageModel
from removal_curves import Asked, by_chance, curve, row_of, traced

__all__ = ["Lookup", "left", "lookup", "read", "sentences", "writes"]

QUESTIONS, EXAMPLES, HOPS, PART = 20, 2, 2, 0.2
BEFORE = "Document: "  # heads rest on a text's first token, which shall be none of the document's
PEOPLE = ("Anna", "Ben", "Emma", "Jack", "Laura", "Peter", "Sarah", "Tom")
THINGS = ("key", "ring", "hat", "watch", "map", "coin")
COLOURS = ("red", "blue", "green", "white", "black", "brown")
ROOMS = ("attic", "kitchen", "garden", "school", "church", "barn", "library", "office")


@dataclass(frozen=True)
class Lookup:
    """A question of two steps.

    Attributes:
        text: the document, a sentence for each person and each box.
        steps: the two sentences that are needed, in order.
        question: the question.
        thought: what repeats both sentences and begins a third.
        answer: the word that ends it.
    """

    text: str
    steps: tuple[str, str]
    question: str
    thought: str
    answer: str


def lookup(seed: int | str) -> Lookup:
    """Draw a lookup among three people."""
    dice = random.Random(f"lookup {seed}")
    people, colours, rooms = (dice.sample(some, 3) for some in (PEOPLE, COLOURS, ROOMS))
    thing = dice.choice(THINGS)
    boxes = [
        f"{name}'s {thing} is in the {own} box." for name, own in zip(people, colours, strict=True)
    ]
    where = [f"The {own} box is in the {room}." for own, room in zip(colours, rooms, strict=True)]
    steps = boxes[0], where[0]
    text = " ".join(dice.sample(boxes, 3) + dice.sample(where, 3))
    whose = f"{people[0]}'s {thing}"
    thought = f" {' '.join(steps)} So {whose} is in the"
    return Lookup(text, steps, f"Where is {whose}?", thought, f" {rooms[0]}")


def _prompt(one: Lookup, question: str) -> str:
    return f"{BEFORE}{one.text}\n\nQuestion: {question}\nAnswer:"


@dataclass(frozen=True)
class Read:
    """A lookup in tokens.

    Attributes:
        asked: what is explained, the last word.
        said: thought and word.
        sentences: tokens of each sentence of the document, the two steps first.
    """

    asked: Asked
    said: Answer
    sentences: tuple[list[int], ...]


def read(model: LanguageModel, one: Lookup) -> Read:
    """Return a lookup in tokens, with its thought as it is."""
    prompt = _prompt(one, one.question)
    whole = model.read(prompt + one.thought + one.answer)
    first = next(n for n, (_, end) in enumerate(whole.offsets) if end > len(prompt))
    last = len(whole.ids) - 1
    steps = *one.steps, *(part for part in sentences(one.text) if part not in one.steps)
    neutral = _prompt(one, NEUTRAL)
    other = model.read(f"{neutral} {NEUTRAL}")
    at = next(n for n, (_, end) in enumerate(other.offsets) if end > len(neutral) + 1)
    asked = Asked(
        ids=torch.tensor(whole.ids),
        answer=Answer(slice(last, last + 1)),
        places=_places(whole.offsets, len(BEFORE), len(one.text)),
        neutral=(torch.tensor(other.ids), Answer(slice(at, len(other.ids)))),
    )
    return Read(
        asked=asked,
        said=Answer(slice(first, last + 1)),
        sentences=tuple(_places(whole.offsets, prompt.index(step), len(step)) for step in steps),
    )


def writes(model: LanguageModel, one: Lookup, examples: Sequence[Lookup]) -> bool:
    """Return True if a model writes thought and answer itself, after examples of them."""
    before = "".join(
        f"{_prompt(other, other.question)}{other.thought}{other.answer}.\n\n" for other in examples
    )
    prompt = model.read(before + _prompt(one, one.question)).ids
    expected = model.read(before + _prompt(one, one.question) + one.thought + one.answer).ids
    expected = expected[len(prompt) :]
    greedy = Sampling(temperature=0.0)
    drawn = model.stream(prompt, tokens=len(expected), sampling=greedy)
    return all(own == token for own, token in zip(drawn, expected, strict=True))


def sentences(text: str) -> list[str]:
    """Return the sentences of a document."""
    return [f"{part.removesuffix('.')}." for part in text.split(". ")]


def _places(offsets: Sequence[tuple[int, int]], start: int, length: int) -> list[int]:
    """Return the tokens in some characters; one may hold the space before them."""
    stop = start + length
    return [n for n, (at, end) in enumerate(offsets) if start - 1 <= at and start < end <= stop]


def left(model: LanguageModel, one: Read, said: Answer, gone: Sequence[list[int]]) -> list[float]:
    """Return the change of a log-probability without some tokens, of each set of them, in nats."""
    blank = int(model.tokenizer.end or 0)
    logs = curve(model.module, one.asked.ids, said, [[], *gone], blank)
    return (logs[1:] - logs[0]).tolist()


def of_sentences(model: LanguageModel, one: Read) -> Iterator[tuple[str, list[float]]]:
    """Yield what is lost without the first step, the second, and any other sentence."""
    for name, said in ("thought and word", one.said), ("the word alone", one.asked.answer):
        first, second, *others = left(model, one, said, one.sentences)
        yield name, [first, second, sum(others) / len(others)]


def of_orders(model: LanguageModel, one: Read, seed: int) -> Iterator[tuple[str, list[float]]]:
    """Yield of each order the part on the steps, and what thought and word lose without a fifth."""
    places = list(one.asked.places)
    found = dict([*traced(model, one.asked, HOPS), by_chance(one.asked, seed)])
    gone = [
        [places[at] for at in own.argsort(descending=True)[: round(len(places) * PART)]]
        for own in found.values()
    ]
    for (name, own), change in zip(found.items(), left(model, one, one.said, gone), strict=True):
        positive = dict(zip(places, own.double().clamp_min(0).tolist(), strict=True))
        parts = (sum(positive[at] for at in step) for step in one.sentences[:2])
        yield name, [*(part / sum(positive.values()) for part in parts), change]


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--questions", type=int, default=QUESTIONS)
    options = parser.parse_args()
    model = regard.models.open(options.model)
    examples = [lookup(f"example {number}") for number in range(EXAMPLES)]
    right, found = 0, dict[str, list[list[float]]]()
    for seed in range(options.questions):
        right += writes(model, lookup(seed), examples)
        print(seed, "right:", right, file=sys.stderr, flush=True)
        one = read(model, lookup(seed))
        for name, row in (*of_sentences(model, one), *of_orders(model, one, seed)):
            found.setdefault(name, []).append(row)
            print(seed, name, *(f"{part:.2f}" for part in row), file=sys.stderr, flush=True)
    print(f"{right} of {options.questions} thoughts were the model's own")
    for name, rows in found.items():
        print(row_of(name, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
