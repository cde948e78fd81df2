"""Exercises of page 2."""

import torch

from regard_course._exercise import Answer, Function, Mistake

__all__ = ["EXERCISES", "TITLE"]

TITLE = "Weights that come from the data"


def _softmax_of(shifted: torch.Tensor, dim: int = -1) -> torch.Tensor:
    exponentials = shifted.exp()
    return exponentials / exponentials.sum(dim=dim, keepdim=True)


def _tables() -> list[tuple[torch.Tensor]]:
    """A row, a table, a batch; large scores, and rows of very different size."""
    generator = torch.Generator().manual_seed(2)
    drawn = [torch.randn(shape, generator=generator) for shape in [(5,), (3, 3), (2, 3, 7)]]
    large = torch.tensor([[1000.0, 999.0], [-1000.0, -1001.0]])
    return [(scores,) for scores in [*drawn, large]]


def _self_attention(x: torch.Tensor) -> torch.Tensor:
    return (x @ x.T).softmax(dim=-1) @ x


def _rows() -> list[tuple[torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(shape, generator=generator),) for shape in [(3, 3), (5, 3), (7, 2)]]


EXERCISES = (
    Answer(
        "2.1",
        kind="predict",
        title="The row that scores highest with the query of “warm”",
        expected="warm",
        hint="Two things make a dot product large: the same direction, and length.",
        mistakes=(
            Mistake(
                "the nearest other row",
                "sunny",
                "“sunny” comes close. No row points more the way of “warm” than its own.",
            ),
            Mistake(
                "a large entry taken for a long row",
                "the",
                "0.89 is the largest entry of all, yet it meets 0.66 in the row of “warm”.",
            ),
        ),
    ),
    Answer(
        "2.2",
        kind="predict",
        title="The dot products of (3, 4) with (6, 8), (3, 4), (−4, 3) and (−3, −4)",
        expected=[50.0, 25.0, 0.0, -25.0],
        hint="Multiply entry by entry and add: the first is 6·3 + 8·4.",
        mistakes=(
            Mistake(
                "cosines", [1.0, 1.0, 0.0, -1.0], "A dot product has the two lengths in it as well."
            ),
            Mistake(
                "lengths alone", [50.0, 25.0, 25.0, 25.0], "Opposite signs take away from the sum."
            ),
        ),
    ),
    Answer(
        "2.3",
        kind="by hand",
        title="The context of row 0 in self-attention over the rows (1, 0) and (0, 1)",
        expected=[0.7311, 0.2689],
        hint="The scores of row 0 are 1 and 0; their exponentials are 2.718 and 1.",
        mistakes=(
            Mistake("scores for weights", [1.0, 0.0], "A score of 0 still has the exponential 1."),
            Mistake(
                "equal weights", [0.5, 0.5], "Row 0 scores 1 with itself and 0 with the other row."
            ),
            Mistake("row 1 for row 0", [0.2689, 0.7311], "This is what row 1 takes in."),
        ),
    ),
    Answer(
        "2.4",
        kind="by hand",
        title="What key 1 receives from the weights ½ ½ 0, ⅕ 3/10 ½, 1/10 ⅘ 1/10",
        expected=1.6,
        hint="What a key receives is the sum of its column.",
        mistakes=(
            Mistake("the row's sum", 1.0, "A row sums to 1 always. Keys are columns."),
            Mistake("the column's mean", 1.6 / 3, "What is received is the sum, not the mean."),
            Mistake("another column", 0.8, "This is column 0; columns are counted from 0."),
        ),
    ),
    Function(
        "2.5",
        title="softmax(scores): along the last axis, without torch.softmax, for large scores too",
        name="softmax",
        reference=lambda scores: scores.softmax(dim=-1),
        cases=_tables,
        hint="Subtract scores.amax(dim=-1, keepdim=True) first; the weights stay the same.",
        mistakes=(
            Mistake(
                "the largest score not subtracted",
                _softmax_of,
                "The exponential of 1000 is infinite, and ∞/∞ is nan.",
            ),
            Mistake(
                "the largest of the whole table subtracted",
                lambda scores: _softmax_of(scores - scores.max()),
                "A row far below it has exponentials of 0, and 0/0 is nan: each row has its own.",
            ),
            Mistake(
                "over the wrong axis",
                lambda scores: _softmax_of(scores - scores.amax(0, keepdim=True), dim=0),
                "Keys lie along the last axis: dim=-1.",
            ),
            Mistake(
                "divided by the sum of the whole table",
                lambda scores: (
                    (scores - scores.amax(-1, keepdim=True)).exp()
                    / (scores - scores.amax(-1, keepdim=True)).exp().sum()
                ),
                "Each row has to sum to 1 by itself: sum(dim=-1, keepdim=True).",
            ),
            Mistake(
                "not divided by the sum",
                lambda scores: (scores - scores.amax(-1, keepdim=True)).exp(),
                "These are the exponentials; the largest is 1, and the row does not sum to 1.",
            ),
        ),
    ),
    Function(
        "2.6",
        title="self_attention(x): the context of each row, (T, E) to (T, E), with nothing trained",
        name="self_attention",
        reference=_self_attention,
        cases=_rows,
        hint="Three lines: scores = x @ x.T, weights = softmax of each row, context = weights @ x.",
        mistakes=(
            Mistake("no softmax", lambda x: x @ x.T @ x, "Scores are not weights."),
            Mistake(
                "softmax over the wrong axis",
                lambda x: (x @ x.T).softmax(dim=0) @ x,
                "Each query shares out its weight among keys: dim=-1.",
            ),
            Mistake("no transpose", lambda x: (x @ x).softmax(dim=-1) @ x, "Scores are x @ x.T."),
            Mistake(
                "scaled",
                lambda x: (x @ x.T / x.shape[-1] ** 0.5).softmax(dim=-1) @ x,
                "The scale 1/√D comes on page 3; here the scores are used as they are.",
            ),
            Mistake(
                "weights for context",
                lambda x: (x @ x.T).softmax(dim=-1),
                "One step is missing: the weighted sum of the rows.",
            ),
        ),
    ),
    Answer(
        "2.7",
        kind="break",
        title="The key that “went” gives most to when the row of “by” is ten times as long",
        expected="by",
        hint="Which of the scores of “went” become ten times as large?",
        mistakes=(
            Mistake(
                "direction alone",
                "sunny",
                "“sunny” was the strongest; its score is still 0.72, and that of “by” is 2.9 now.",
            ),
            Mistake(
                "a row taken to like itself best",
                "went",
                "Its score with itself is still 0.67; length counts as much as direction.",
            ),
        ),
    ),
)
