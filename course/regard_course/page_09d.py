"""Exercises of page 9d."""

import torch

from regard_course._exercise import Answer, Function, Mistake

__all__ = ["EXERCISES", "TITLE"]

TITLE = "Sampling, and the heads that you trained"


def _with_temperature(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    return torch.softmax(logits / temperature, dim=-1)


def _top_k(logits: torch.Tensor, k: int) -> torch.Tensor:
    return _only(logits, logits.topk(k).indices).softmax(dim=-1)


def _only(logits: torch.Tensor, places: torch.Tensor, rest: float = -torch.inf) -> torch.Tensor:
    return torch.full_like(logits, rest).scatter(-1, places, logits.gather(-1, places))


def _kept_shares(logits: torch.Tensor, k: int) -> torch.Tensor:
    shares = logits.softmax(dim=-1)
    return _only(shares, shares.topk(k).indices, 0.0)


def _logits() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(9)
    return [2 * torch.randn(shape, generator=generator) for shape in [(5,), (3, 7), (2, 3, 11)]]


EXERCISES = (
    Answer(
        "9d.1",
        kind="predict",
        title="What dividing the logits by 2 does to the probabilities",
        expected="closer",
        hint="What if the logits were divided by a million?",
        mistakes=(
            Mistake(
                "the wrong way",
                "apart",
                "Half the difference of two logits: the root of the ratio of their probabilities.",
            ),
            Mistake(
                "a ratio taken for a difference",
                "no change",
                "Softmax depends on differences of logits, and these are halved.",
            ),
        ),
    ),
    Answer(
        "9d.2",
        kind="predict",
        title="The word that must be looked at from “what?”",
        expected="ball",
        hint="Which word is the answer, and where does the model get it from?",
        mistakes=(
            Mistake("the person", "Ida", "That answers “who?”."),
            Mistake("the place", "attic", "That answers “where?”."),
            Mistake("the verb", "lost", "It says what happened, and not to which thing."),
        ),
    ),
    Answer(
        "9d.3",
        kind="predict",
        title="The question that suffers without head 1",
        expected="what",
        hint="Which question gives its answer nearly all of its weight in head 1?",
        mistakes=(
            Mistake("the other head's work", "who", "Head 1 gives people 0.1; head 0 finds them."),
            Mistake("the other head's place", "where", "Head 0 gives the place nearly all."),
        ),
    ),
    Answer(
        "9d.4",
        kind="by hand",
        title="The probabilities of logits 0 and ln 3 at temperature ½",
        expected=[0.1, 0.9],
        tolerance=0.006,
        hint="Dividing by ½ doubles the logits: 0 and 2 ln 3, and e to the power of 2 ln 3 is 9.",
        mistakes=(
            Mistake("temperature 1", [0.25, 0.75], "Divide the logits by ½ first."),
            Mistake("times ½", [0.366, 0.634], "Divide by ½; you have multiplied."),
            Mistake("no softmax", [0.0, 2.197], "These are the logits; softmax comes next."),
        ),
    ),
    Answer(
        "9d.5",
        kind="by hand",
        title="Top-p with p = 0.7 of the probabilities 0.5, 0.3, 0.15, 0.05",
        expected=[0.625, 0.375, 0.0, 0.0],
        tolerance=0.006,
        hint="How many of the likeliest are needed for 0.7? What do these sum to?",
        mistakes=(
            Mistake("not divided", [0.5, 0.3, 0.0, 0.0], "Divide by their sum, 0.8."),
            Mistake("one too few", [1.0, 0.0, 0.0, 0.0], "0.5 alone does not make up 0.7."),
            Mistake(
                "one too many",
                [0.5263, 0.3158, 0.1579, 0.0],
                "0.5 and 0.3 make up 0.7 already.",
            ),
        ),
    ),
    Function(
        "9d.6",
        title="with_temperature(logits, temperature): the probabilities, (…, V) to the same",
        name="with_temperature",
        reference=_with_temperature,
        cases=lambda: [(one, heat) for one, heat in zip(_logits(), (0.5, 2.0, 0.7), strict=True)],
        hint="First divide, then softmax along the last axis.",
        mistakes=(
            Mistake(
                "times the temperature",
                lambda logits, temperature: torch.softmax(logits * temperature, dim=-1),
                "A high temperature brings logits closer: divide.",
            ),
            Mistake(
                "softmax first",
                lambda logits, temperature: torch.softmax(logits, dim=-1) / temperature,
                "Probabilities that are divided no longer sum to 1: divide the logits.",
            ),
            Mistake(
                "softmax over the wrong axis",
                lambda logits, temperature: torch.softmax(logits / temperature, dim=0),
                "The tokens of the vocabulary lie along the last axis: dim=-1.",
            ),
            Mistake(
                "no temperature",
                lambda logits, _: torch.softmax(logits, dim=-1),
                "Divide the logits by the temperature.",
            ),
        ),
    ),
    Function(
        "9d.7",
        title="top_k(logits, k): the probabilities of the k likeliest, (…, V) to the same",
        name="top_k",
        reference=_top_k,
        cases=lambda: [(one, k) for one, k in zip(_logits(), (1, 3, 4), strict=True)],
        hint="logits.topk(k).values[..., -1:] is the smallest logit that stays; "
        "−∞ hides the others.",
        mistakes=(
            Mistake(
                "0 for −∞",
                lambda logits, k: _only(logits, logits.topk(k).indices, 0.0).softmax(dim=-1),
                "A logit of 0 has the exponential 1; only −∞ gives the probability 0.",
            ),
            Mistake("not divided", _kept_shares, "What is left must sum to 1."),
            Mistake(
                "the least likely",
                lambda logits, k: _only(logits, (-logits).topk(k).indices).softmax(dim=-1),
                "These are the k smallest logits.",
            ),
            Mistake(
                "all stay", lambda logits, _: logits.softmax(dim=-1), "Only k of them may be drawn."
            ),
        ),
    ),
    Answer(
        "9d.8",
        kind="break",
        title="The questions that are left to chance after seed 1, without head 1",
        expected="all",
        hint="Print the mean weights of both heads after the training from seed 1.",
        mistakes=(
            Mistake(
                "the share of seed 2", "what", "From another start the work is shared otherwise."
            ),
            Mistake("the other head", "none", "Without head 0 nothing is lost; try head 1."),
        ),
    ),
)
