"""How often the passage that holds an answer is ranked first: by difference, weight, need, words.

``python tools/passage_ranks.py [MODEL] [--genre NAME]`` asks a model, smollm2 by default, every
question of the documents in `benchmarks/passages`, with its chat template and without, and prints a
table; half an hour on two cores. `docs/trace.md` has it.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

import regard
from regard.lens import Answer
from regard.models import LanguageModel

__all__ = ["Document", "Question", "documents", "ranks"]

FOLDER = Path(__file__).parents[1] / "benchmarks" / "passages"
NEUTRAL = "N/A"
UNLIKELY = 0.05  # a token, below which `regard trace` calls an answer that is given unlikely


@dataclass(frozen=True)
class Question:
    """A question on a document."""

    text: str
    answer: str
    passage: int
    """Index of the paragraph that holds the answer."""


@dataclass(frozen=True)
class Document:
    """A text of several paragraphs, with questions that one of them answers."""

    genre: str
    name: str
    source: str
    text: str
    questions: tuple[Question, ...]

    @property
    def is_ours(self) -> bool:
        """Whether it was written for this."""
        return self.source == "written for this"


def documents() -> Iterator[Document]:
    """Yield the documents of all genres."""
    for file in sorted(FOLDER.glob("*.txt")):
        for block in re.split(r"^=== ", file.read_text("utf-8"), flags=re.MULTILINE)[1:]:
            title, rest = block.split("\n\n", 1)
            text, asked = rest.split("\n\n? ", 1)
            name, source = title.split(": ", 1)
            paragraphs = text.split("\n\n")
            questions = []
            for line in asked.strip().split("\n"):
                question, answer, words = line.removeprefix("? ").split(" | ")
                (place,) = (n for n, one in enumerate(paragraphs) if words in one)
                questions.append(Question(question, answer, place))
            yield Document(file.stem, name, source, text, tuple(questions))


@dataclass(frozen=True)
class Ranked:
    """What each measure makes of one question."""

    document: Document
    question: Question
    first: dict[str, int]
    """For each measure, the passage that it puts first."""
    probability: float
    """Of the answer's tokens, their geometric mean."""

    def is_right(self, measure: str) -> bool:
        """Return True if the right passage is first."""
        return self.first[measure] == self.question.passage


def ranks(model: LanguageModel, document: Document, *, chat: bool, need: bool) -> Iterator[Ranked]:
    """Yield what each measure puts first, for each question of a document."""
    neutral = _read(model, document.text, NEUTRAL, NEUTRAL, chat=chat)[:2]
    of_neutral = _recorded(model, neutral[0])
    for question in document.questions:
        ids, target, offsets, start = _read(
            model, document.text, question.text, question.answer, chat=chat
        )
        parts = regard.lens.split_passages(document.text, offsets, start=start)
        weights = regard.lens.passage_weights(
            _recorded(model, ids), parts, target, neutral=(of_neutral, neutral[1])
        )
        count = len(parts)
        first = {
            "difference": int(weights.difference[:count].argmax()),
            "weight": int(weights.mean[:count].argmax()),
            "words": _most_words(question.text, [part.text for part in parts]),
            "first": 0,
            "last": count - 1,
        }
        if need:
            effects = regard.lens.effects(
                model, ids, target, over=parts, hidden_from="question", progress=False
            )
            first["need"] = int(effects.values.argmin())
        logs = model.module(ids[None]).logits[0].double().log_softmax(-1)
        queries = range(*target.queries(len(ids)))
        log = logs[queries, ids[slice(queries[0] + 1, queries[-1] + 2)]].mean()
        yield Ranked(document, question, first, math.exp(log))


def _read(
    model: LanguageModel, text: str, question: str, answer: str, *, chat: bool
) -> tuple[torch.Tensor, Answer, tuple[tuple[int, int], ...], int]:
    """Return the tokens of document, question and answer, as `regard trace` has them."""
    content = f"{text}\n\n{question}"
    prompt = model.read(content, chat=chat).text
    apart = "" if chat or prompt[-1:].isspace() else " "
    whole = model.read(f"{prompt}{apart}{answer}", special=not chat)
    own = [n for n, (_, stop) in enumerate(whole.offsets) if stop > len(prompt)]
    target = Answer(slice(own[0], own[-1] + 1))
    return torch.tensor(whole.ids), target, whole.offsets, prompt.index(content)


def _recorded(model: LanguageModel, ids: torch.Tensor) -> regard.Recording:
    with regard.record(model.module) as recording:
        model.module(ids[None])
    return recording


def _most_words(question: str, passages: list[str]) -> int:
    """Return the passage with the most words of the question, each counted once."""
    asked = set(re.findall(r"\w+", question.lower()))
    shared = [len(asked & set(re.findall(r"\w+", text.lower()))) for text in passages]
    return shared.index(max(shared))


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--genre")
    parser.add_argument("--no-need", action="store_true", help="leave out the slowest measure")
    options = parser.parse_args()
    model = regard.models.open(options.model)
    texts = [one for one in documents() if options.genre in (None, one.genre)]
    for chat in (True, False):
        with torch.inference_mode():
            found = [
                one
                for text in texts
                for one in ranks(model, text, chat=chat, need=not options.no_need)
            ]
        print("with its chat template" if chat else "plain text", flush=True)
        groups = {
            "all": found,
            "written for this": [one for one in found if one.document.is_ours],
            "licensed text": [one for one in found if not one.document.is_ours],
            **{g: [one for one in found if one.document.genre == g] for g in _genres(texts)},
            f"{UNLIKELY} a token or more": [o for o in found if o.probability >= UNLIKELY],
            "less": [one for one in found if one.probability < UNLIKELY],
        }
        print(f"{'':24}{'questions':>10}", *(f"{name:>11}" for name in found[0].first))
        for name, some in groups.items():
            shares = (
                f"{sum(one.is_right(m) for one in some) / len(some):>11.0%}" for m in found[0].first
            )
            print(f"{name:24}{len(some):>10}", *shares)
    return 0


def _genres(texts: list[Document]) -> list[str]:
    return sorted({text.genre for text in texts})


if __name__ == "__main__":
    sys.exit(main())
