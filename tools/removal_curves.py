"""How much an answer loses as tokens are removed in the order of scores: `trace` and others.

``python tools/removal_curves.py [MODEL]`` asks a model, smollm2 by default, the first question of
twenty documents of `benchmarks/passages`, cut to the paragraph that holds the answer and the one
beside it, and prints a table; `docs/trace.md` has it. Tokens of the document are replaced
by the tokenizer's end token, the highest score first, and the answer's log-probability measured.

RISE and MAS are the areas under the curve that the evaluation of FlashTrace prints (Pan et al.
2026, arXiv:2602.01914; https://github.com/wbopan/flashtrace, llm_attr_eval.py), MAS after Walker et
al. 2024 (IJCAI). The lower, the more faithful. Three things differ: tokens are replaced in ten
steps in place of one by one, no end token is scored after the answer, and a negative score counts
as 0 in MAS. The *gap* is our own: how much more is left of the log-probability, in nats and as a
mean over the steps, if the lowest scores go first than if the highest do.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn

import regard
from flashtrace import hops_of, layers_of, span_of
from passage_ranks import NEUTRAL, Document, documents
from regard.lens import Answer
from regard.lens.targets import last_logits_for, target_of
from regard.models import LanguageModel

__all__ = [
    "Asked",
    "by_chance",
    "curve",
    "gap",
    "magnitude_aligned",
    "removed",
    "rise",
    "row_of",
    "traced",
]

QUESTIONS, STEPS = 20, 10


def removed(order: Sequence[int], steps: int) -> list[Sequence[int]]:
    """Return what is gone after each step, from nothing to all."""
    return [order[: round(len(order) * step / steps)] for step in range(steps + 1)]


@torch.inference_mode()
def curve(
    model: nn.Module, ids: Tensor, answer: Answer, gone: Sequence[Sequence[int]], blank: int
) -> Tensor:
    """Return the answer's log-probability with some tokens replaced, of each set of them."""
    _, log_probability = target_of(answer, model, {"input_ids": ids[None]})
    texts = ids.repeat(len(gone), 1)
    for text, places in zip(texts, gone, strict=True):
        text[list(places)] = blank
    last = last_logits_for(answer, model, {"input_ids": texts})
    logs: Tensor = log_probability(model(texts, **last))
    return logs


def _left(logs: Tensor) -> Tensor:
    """Return which part of the log-probability is left, 1 at first, and never more than before."""
    return ((logs - logs[-1]) / (logs[0] - logs[-1]).abs()).clamp(0, 1).cummin(0).values


def _area(heights: Tensor) -> float:
    return float(torch.trapezoid(heights)) / (len(heights) - 1)


def rise(logs: Tensor) -> float:
    """Return the area under what is left of the log-probability."""
    return _area(_left(logs))


def magnitude_aligned(logs: Tensor, scores: Tensor, gone: Sequence[Sequence[int]]) -> float:
    """Return the area under what is left, with a penalty where the scores that are left differ."""
    left, own = _left(logs), scores.double().clamp_min(0)
    share = torch.stack([1 - own[list(places)].sum() / own.sum() for places in gone])
    with_penalty = (left + (left - share).abs()).clamp(0, 1)
    return _area((with_penalty - with_penalty.min()) / (with_penalty.max() - with_penalty.min()))


def gap(most_first: Tensor, least_first: Tensor) -> float:
    """Return the area between two curves, in nats."""
    return _area(least_first - most_first)


@dataclass(frozen=True)
class Asked:
    """A question on a document and its answer, in tokens.

    Attributes:
        ids: the text with both.
        answer: the tokens that are explained.
        places: tokens of the document.
        neutral: the text with a neutral question and answer, and that answer.
    """

    ids: Tensor
    answer: Answer
    places: Sequence[int]
    neutral: tuple[Tensor, Answer]


def traced(model: LanguageModel, asked: Asked, hops: int = 1) -> Iterator[tuple[str, Tensor]]:
    """Yield what an answer took from each token of its document, by `trace` and by FlashTrace."""
    ids, places = asked.ids, list(asked.places)
    first, last = places[0], places[-1] + 1
    ways = ["directly", "through 1 hop", *(f"through {hop} hops" for hop in range(2, hops + 1))]
    found = regard.lens.trace(
        model, ids, asked.answer, (first, last), hops=hops, neutral=asked.neutral
    )
    for measure, shares in found.shares.items():
        for way, share in zip(ways, shares[:, places], strict=True):
            yield f"`{measure}`, {way}", share
    if isinstance(getattr(model.module, "model", None), nn.Module):
        # FlashTrace explains the answer's own positions, not the queries that predict them.
        span, rows = span_of(layers_of(model.module, ids)), range(*found.answer)
        theirs = hops_of(span, rows, range(last, rows[0]), places, hops)
        for way, share in zip(ways, theirs[:, places], strict=True):
            yield f"FlashTrace, rewritten, {way}", share


def by_chance(asked: Asked, seed: int) -> tuple[str, Tensor]:
    """Return scores that are drawn."""
    generator = torch.Generator().manual_seed(seed)
    return "none: a random order", torch.rand(len(asked.places), generator=generator)


def scores(model: LanguageModel, asked: Asked, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Yield scores of a document's tokens, by name: high where the answer rests on one."""
    yield from traced(model, asked)
    spans = [(place, place + 1) for place in asked.places]
    effects = regard.lens.effects(model.module, asked.ids, asked.answer, over=spans, progress=False)
    yield "what hiding the token costs, measured", -effects.values
    yield by_chance(asked, seed)


def shortened(document: Document) -> str:
    """Return the paragraph that answers the first question and the one before it, or after it."""
    first = max(document.questions[0].passage - 1, 0)
    return "\n\n".join(document.text.split("\n\n")[first : first + 2])


def read(model: LanguageModel, document: Document) -> Asked:
    """Return a document's first question and its answer, in tokens of the chat template."""
    own, content = document.questions[0], shortened(document)

    def tokens(question: str, answer: str) -> tuple[Tensor, Answer, list[int]]:
        text = f"{content}\n\n{question}"
        prompt = model.read(text, chat=True).text
        whole = model.read(prompt + answer, special=False)
        start = prompt.index(text)
        said = [n for n, (_, end) in enumerate(whole.offsets) if end > len(prompt)]
        places = [
            n
            for n, (at, end) in enumerate(whole.offsets)
            if start <= at < end <= start + len(content)
        ]
        return torch.tensor(whole.ids), Answer(slice(said[0], said[-1] + 1)), places

    ids, answer, places = tokens(own.text, own.answer)
    return Asked(ids, answer, places, tokens(NEUTRAL, NEUTRAL)[:2])


def measured(
    model: LanguageModel, asked: Asked, seed: int
) -> Iterator[tuple[str, tuple[float, float, float]]]:
    """Yield RISE, MAS and gap of each score.

    Raises:
        ValueError: for a model whose tokenizer has no end token.
    """
    if (blank := model.tokenizer.end) is None:
        raise ValueError(f"{model.name} has no end token, by which others could be replaced")
    ids, answer, places = asked.ids, asked.answer, list(asked.places)
    ends = curve(model.module, ids, answer, [[], places], blank)  # the same in every order

    def curve_of(order: Sequence[int]) -> tuple[Tensor, list[Sequence[int]]]:
        gone = removed(order, STEPS)
        between = curve(model.module, ids, answer, gone[1:-1], blank)
        return torch.cat([ends[:1], between, ends[1:]]), gone

    for name, own in scores(model, asked, seed):
        whole = torch.zeros(len(ids), dtype=torch.float64)
        whole[places] = own.double()
        ranked = sorted(places, key=lambda place: -float(whole[place]))
        most, gone = curve_of(ranked)
        least, _ = curve_of(ranked[::-1])
        yield name, (rise(most), magnitude_aligned(most, whole, gone), gap(most, least))


def row_of(name: str, rows: Sequence[Sequence[float]]) -> str:
    """Return a row of a table: the mean of each column with its standard error."""
    values = torch.tensor(rows)
    errors = values.std(0) / len(rows) ** 0.5
    cells = (f"{one:.2f} ± {error:.2f}" for one, error in zip(values.mean(0), errors, strict=True))
    return f"| {name} | {' | '.join(cells)} |"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--questions", type=int, default=QUESTIONS)
    options = parser.parse_args()
    model = regard.models.open(options.model)
    found: dict[str, list[tuple[float, float, float]]] = {}
    ours = (document for document in documents() if document.is_ours)
    for seed, document in enumerate(islice(ours, options.questions)):
        for name, row in measured(model, read(model, document), seed):
            found.setdefault(name, []).append(row)
            print(seed, name, *(f"{one:.2f}" for one in row), file=sys.stderr, flush=True)
    for name, rows in found.items():
        print(row_of(name, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
