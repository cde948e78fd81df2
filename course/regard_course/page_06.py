"""Exercises of page 6, dropout."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard_course._exercise import Answer, Function, Mistake

__all__ = ["EXERCISES", "TITLE"]

TITLE = "Dropout"


def _dropout(weights: Tensor, survives: Tensor, p: float) -> Tensor:
    return torch.where(survives, weights / (1 - p), 0.0)


def _no_factor(weights: Tensor, survives: Tensor, _: float) -> Tensor:
    return torch.where(survives, weights, 0.0)


def _divided_by_p(weights: Tensor, survives: Tensor, p: float) -> Tensor:
    return torch.where(survives, weights / p, 0.0)


def _kept_the_others(weights: Tensor, survives: Tensor, p: float) -> Tensor:
    return _dropout(weights, ~survives, p)


def _summed_to_one(weights: Tensor, survives: Tensor, _: float) -> Tensor:
    kept = torch.where(survives, weights, 0.0)
    return kept / kept.sum(dim=-1, keepdim=True)


def _weights_cases() -> Sequence[tuple[Tensor, Tensor, float]]:
    generator = torch.Generator().manual_seed(6)
    cases = []
    for rows, columns, p in ((3, 3, 0.25), (5, 7, 0.4)):
        weights = torch.softmax(torch.randn(rows, columns, generator=generator), dim=-1)
        survives = torch.rand(rows, columns, generator=generator) >= p
        survives[:, 0] = True  # so that no row is empty
        cases.append((weights, survives, p))
    return cases


def _scaled(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.mT / query.shape[-1] ** 0.5


def _earlier(query: Tensor) -> Tensor:
    return torch.ones(len(query), len(query), dtype=torch.bool).tril()


def _dropped_attention(
    query: Tensor, key: Tensor, value: Tensor, survives: Tensor, p: float
) -> Tensor:
    masked = _scaled(query, key).masked_fill(~_earlier(query), -torch.inf)
    return _dropout(torch.softmax(masked, dim=-1), survives, p) @ value


def _dropped_scores(
    query: Tensor, key: Tensor, value: Tensor, survives: Tensor, p: float
) -> Tensor:
    dropped = _dropout(_scaled(query, key), survives, p)
    return torch.softmax(dropped.masked_fill(~_earlier(query), -torch.inf), dim=-1) @ value


def _no_mask(query: Tensor, key: Tensor, value: Tensor, survives: Tensor, p: float) -> Tensor:
    return _dropout(torch.softmax(_scaled(query, key), dim=-1), survives, p) @ value


def _dropped_context(
    query: Tensor, key: Tensor, value: Tensor, survives: Tensor, p: float
) -> Tensor:
    masked = _scaled(query, key).masked_fill(~_earlier(query), -torch.inf)
    context = torch.softmax(masked, dim=-1) @ value
    return _dropout(context, survives[:, : value.shape[-1]], p)


def _attention_cases() -> Sequence[tuple[Tensor, Tensor, Tensor, Tensor, float]]:
    generator = torch.Generator().manual_seed(6)
    cases = []
    for length, channels, p in ((3, 2, 0.5), (7, 5, 0.2)):
        query, key, value = torch.randn(3, length, channels, generator=generator)
        survives = torch.rand(length, length, generator=generator) >= p
        survives[:, 0] = True
        cases.append((query, key, value, survives, p))
    return cases


EXERCISES = (
    Answer(
        "6.1",
        kind="predict",
        title="The two values of a weight of 1 after dropout with p = ½",
        expected=[0.0, 2.0],
        hint="It is zeroed, or it survives and is multiplied by 1/(1−p).",
        mistakes=(
            Mistake("no factor", [0.0, 1.0], "A survivor is multiplied by 1/(1−p), here by 2."),
            Mistake("times 1 − p", [0.0, 0.5], "A survivor grows, so that the mean stays."),
        ),
    ),
    Answer(
        "6.2",
        kind="predict",
        title="How often a head without dropout is right once the best witness only guesses",
        expected="one time in four",
        hint="Which witnesses does a head listen to, if one of them has never been wrong?",
        mistakes=(
            Mistake(
                "the others heard as well",
                "nearly always",
                "Nothing in training made the head listen to them: witness 0 was always right.",
            ),
            Mistake(
                "half of the weight",
                "one time in two",
                "All of the weight is on witness 0, whose guess is right one time in four.",
            ),
        ),
    ),
    Answer(
        "6.3",
        kind="by hand",
        title="A weight of 0.4 that survives dropout with p = 0.2",
        expected=0.5,
        hint="Four of five weights survive, so the survivors have to be larger by 5/4.",
        mistakes=(
            Mistake("divided by p", 2.0, "The factor is 1/(1−p), not 1/p."),
            Mistake("times 1 − p", 0.32, "A survivor is divided by 1−p, not multiplied by it."),
            Mistake("no factor", 0.4, "A survivor is multiplied by 1/(1−p)."),
        ),
    ),
    Answer(
        "6.4",
        kind="by hand",
        title="The context of the weights 0.5, 0.3, 0.2 of which the second is dropped",
        expected=22.0,
        hint="Double what survives. The rows are not divided by their sum again.",
        mistakes=(
            Mistake("no factor", 11.0, "Survivors are multiplied by 1/(1−p) = 2."),
            Mistake("rows summed to 1", 11 / 0.7, "Rows are not divided by their sum again."),
            Mistake("nothing dropped", 17.0, "This is the context without dropout."),
        ),
    ),
    Function(
        "6.5",
        title="dropout(weights, survives, p): the weights after dropout",
        name="dropout",
        reference=_dropout,
        cases=_weights_cases,
        hint="torch.where(survives, …, 0.0), and the factor that keeps the mean.",
        mistakes=(
            Mistake("no factor", _no_factor, "Survivors are multiplied by 1/(1−p)."),
            Mistake("divided by p", _divided_by_p, "The factor is 1/(1−p), not 1/p."),
            Mistake("kept the others", _kept_the_others, "True in survives means kept."),
            Mistake("rows summed to 1", _summed_to_one, "Only the mean of many draws sums to 1."),
        ),
    ),
    Function(
        "6.6",
        title="dropped_attention(query, key, value, survives, p): causal attention with dropout",
        name="dropped_attention",
        reference=_dropped_attention,
        cases=_attention_cases,
        hint="The order of the steps: scores, scale, mask, softmax, dropout, times the values.",
        mistakes=(
            Mistake("dropped scores", _dropped_scores, "A score of 0 is not a weight of 0."),
            Mistake("no mask", _no_mask, "Later keys are hidden before softmax."),
            Mistake("dropped the context", _dropped_context, "Weights are dropped, not channels."),
        ),
    ),
    Answer(
        "6.7",
        kind="break",
        title="The weight of a key whose score, not whose weight, is dropped",
        expected=0.5,
        hint=("Page 5 has it under Why −∞ and not 0: what is the exponential of 0?"),
        mistakes=(
            Mistake("no weight", 0.0, "A score of 0 has the exponential 1, not 0."),
            Mistake("as before", 0.75, "This is its weight where nothing is dropped."),
        ),
    ),
)
