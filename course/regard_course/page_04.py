"""Exercises of page 4."""

import torch

from regard_course._exercise import Answer, Function, Mistake

__all__ = ["EXERCISES", "TITLE"]

TITLE = "Why divide by √D"


def _scaled_scores(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5


def _queries_and_keys() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(4)
    shapes = [((3, 3), (3, 3)), ((5, 2), (7, 2)), ((2, 3, 5, 7), (2, 3, 11, 7))]
    return [
        (torch.randn(query, generator=generator), torch.randn(key, generator=generator))
        for query, key in shapes
    ]


def _entropy(weights: torch.Tensor) -> torch.Tensor:
    return torch.special.entr(weights).sum(dim=-1)


def _weights() -> list[tuple[torch.Tensor]]:
    """A uniform row, a hard choice, a causal table."""
    generator = torch.Generator().manual_seed(5)
    hidden = torch.ones(5, 5).triu(1).bool()
    scores = torch.randn(2, 5, 5, generator=generator).masked_fill(hidden, -torch.inf)
    return [(torch.full((8,), 1 / 8),), (torch.eye(3),), (scores.softmax(dim=-1),)]


EXERCISES = (
    Answer(
        "4.1",
        kind="predict",
        title="The variance of q·k for D = 64",
        expected=64.0,
        tolerance=1.0,
        hint="It is a sum of D independent products, each with variance 1.",
        mistakes=(
            Mistake("its root", 8.0, "√64 is the typical size; the variance is its square."),
            Mistake("one product", 1.0, "Each product has variance 1, and 64 of them add up."),
            Mistake("D squared", 4096.0, "Variances of independent numbers add up: 64 · 1."),
        ),
    ),
    Answer(
        "4.2",
        kind="predict",
        title="What the weights of 0.5, 1, −0.3, 0.8 come to when the scores are multiplied by 64",
        expected="one weight of 1",
        hint="0.8 and 1 differ by 0.2, which times 64 is 12.8. And e to the 12.8?",
        mistakes=(
            Mistake(
                "a common factor taken to cancel",
                "the same weights",
                "A factor grows the differences. What cancels is a number added to all scores.",
            ),
            Mistake(
                "the wrong direction",
                "four equal weights",
                "Weights become equal when the factor goes to 0.",
            ),
        ),
    ),
    Answer(
        "4.3",
        kind="by hand",
        title="The variance of q·k for D = 16 if it is divided by D in place of √D",
        expected=1 / 16,
        tolerance=0.0006,
        hint="Dividing by a number divides the variance by its square.",
        mistakes=(
            Mistake("divided by √D", 1.0, "That is the scale of attention; here it is 1/16."),
            Mistake("the size, not the variance", 0.25, "The variance is the square of this."),
        ),
    ),
    Answer(
        "4.4",
        kind="by hand",
        title="The derivatives of weight 0 by score 0 and by score 1, for the weights ½, ½",
        expected=[0.25, -0.25],
        hint="w₀(1 − w₀) for its own score, −w₀w₁ for the other.",
        mistakes=(
            Mistake("no sign", [0.25, 0.25], "What one weight gains the others lose."),
            Mistake("δ left out", [-0.25, -0.25], "For its own score δ is 1: w₀(1 − w₀)."),
            Mistake("the weights themselves", [0.5, -0.5], "Multiply by the second weight too."),
        ),
    ),
    Function(
        "4.5",
        title="scaled_scores(query, key): (…, L, D) and (…, S, D) to (…, L, S)",
        name="scaled_scores",
        reference=_scaled_scores,
        cases=_queries_and_keys,
        hint="key.transpose(-2, -1) turns the last two axes; D is query.shape[-1].",
        mistakes=(
            Mistake(
                "no scale",
                lambda query, key: query @ key.transpose(-2, -1),
                "Divide by √D.",
            ),
            Mistake(
                "divided by D",
                lambda query, key: query @ key.transpose(-2, -1) / query.shape[-1],
                "The variance is D, so the size is √D: divide by query.shape[-1] ** 0.5.",
            ),
            Mistake(
                "√ of the number of keys",
                lambda query, key: query @ key.transpose(-2, -1) / key.shape[-2] ** 0.5,
                "D is the length of a query and a key, the last axis; not how many there are.",
            ),
            Mistake(
                "multiplied by √D",
                lambda query, key: query @ key.transpose(-2, -1) * query.shape[-1] ** 0.5,
                "Large scores are the trouble: divide.",
            ),
            Mistake(
                "no transpose", lambda query, key: query @ key, "(L, D) @ (D, S) gives (L, S)."
            ),
        ),
    ),
    Function(
        "4.6",
        title="entropy(weights): −Σ w ln w of each row, (…, S) to (…), where 0 · ln 0 is 0",
        name="entropy",
        reference=_entropy,
        cases=_weights,
        hint="torch.where(weights > 0, …, 0), or torch.special.entr, takes care of the zeros.",
        mistakes=(
            Mistake(
                "0 · ln 0 left as it is",
                lambda weights: -(weights * weights.log()).sum(dim=-1),
                "ln 0 is −∞, and 0 · −∞ is nan. In the limit w ln w is 0.",
            ),
            Mistake("no sign", lambda weights: -_entropy(weights), "w ln w is negative for w < 1."),
            Mistake(
                "log to base 2",
                lambda weights: _entropy(weights) / 0.6931472,
                "ln is the natural logarithm, torch.log.",
            ),
            Mistake(
                "the mean for the sum",
                lambda weights: torch.special.entr(weights).mean(dim=-1),
                "Sum over the keys of each row.",
            ),
        ),
    ),
    Answer(
        "4.7",
        kind="break",
        title="The variance of the scaled scores when all queries and keys are twice as large",
        expected=16.0,
        tolerance=0.6,
        hint="Each q is doubled and each k is doubled; the scale stays 1/√D.",
        mistakes=(
            Mistake(
                "the scale taken to adapt",
                1.0,
                "The scale knows D alone; it makes 1 of entries with variance 1.",
            ),
            Mistake(
                "the size, not the variance",
                4.0,
                "Scores are 2 · 2 = 4 times as large; the variance grows by the square.",
            ),
        ),
    ),
)
