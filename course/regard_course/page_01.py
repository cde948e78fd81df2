"""Exercises of page 1."""

import torch

from regard_course._exercise import Answer, Function, Mistake

__all__ = ["EXERCISES", "TITLE"]

TITLE = "Looking back by averaging"


def _triangle(length: int) -> torch.Tensor:
    return torch.ones(length, length).tril()


def _averaging_weights(length: int) -> torch.Tensor:
    return _triangle(length) / _triangle(length).sum(dim=1, keepdim=True)


def _causal_averages(x: torch.Tensor) -> torch.Tensor:
    return _averaging_weights(x.shape[-2]) @ x


def _batches() -> list[tuple[torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(shape, generator=generator),) for shape in [(3, 1), (5, 2), (2, 3, 3)]]


EXERCISES = (
    Answer(
        "1.1",
        kind="predict",
        title="The weights that softmax makes of the scores 0, 0, −∞, −∞",
        expected=[0.5, 0.5, 0.0, 0.0],
        hint="Equal scores give equal weights, a score of −∞ gives the weight 0, and the sum is 1.",
        mistakes=(
            Mistake(
                "−∞ counted as 0",
                [0.25, 0.25, 0.25, 0.25],
                "The exponential of 0 is 1, that of −∞ is 0.",
            ),
            Mistake(
                "not divided by the sum",
                [1.0, 1.0, 0.0, 0.0],
                "These are the exponentials. They sum to 2; weights sum to 1.",
            ),
        ),
    ),
    Answer(
        "1.2",
        kind="predict",
        title="The row whose average stays the same when the mask is left out",
        expected="row 7",
        hint="Which row may see all eight positions even with the mask?",
        mistakes=(
            Mistake("the first for the last", "row 0", "With the mask row 0 sees itself alone."),
            Mistake(
                "the last row is masked too", "no row", "The mask hides nothing from the last row."
            ),
        ),
    ),
    Answer(
        "1.3",
        kind="by hand",
        title="The causal averages of 6, 0, 3, 7",
        expected=[6.0, 3.0, 3.0, 4.0],
        hint="Position t takes the mean of the first t + 1 numbers.",
        mistakes=(
            Mistake("no mask", [4.0, 4.0, 4.0, 4.0], "Position 0 sees itself alone."),
            Mistake(
                "sums", [6.0, 6.0, 9.0, 16.0], "Divide each sum by how many numbers are in it."
            ),
            Mistake(
                "looking ahead",
                [4.0, 10 / 3, 5.0, 7.0],
                "These are the means of a position and those after it.",
            ),
        ),
    ),
    Answer(
        "1.4",
        kind="by hand",
        title="The weights that softmax makes of the scores 0, 0, ln 2, −∞",
        expected=[0.25, 0.25, 0.5, 0.0],
        hint="The exponentials are 1, 1, 2 and 0.",
        mistakes=(
            Mistake(
                "scores for exponentials",
                [0.0, 0.0, 1.0, 0.0],
                "Take the exponential of each score before you divide by the sum.",
            ),
            Mistake("−∞ counted as 0", [0.2, 0.2, 0.4, 0.2], "The exponential of −∞ is 0, not 1."),
            Mistake(
                "not divided by the sum", [1.0, 1.0, 2.0, 0.0], "They sum to 4; weights sum to 1."
            ),
        ),
    ),
    Function(
        "1.5",
        title="averaging_weights(length): the weights of causal averaging, (length, length)",
        name="averaging_weights",
        reference=_averaging_weights,
        cases=lambda: [(1,), (3,), (8,)],
        hint="Start from torch.tril(torch.ones(length, length)); keepdim=True keeps sums a column.",
        mistakes=(
            Mistake(
                "not divided by the sum", _triangle, "Ones alone make a sum; a mean needs shares."
            ),
            Mistake(
                "columns divided",
                lambda length: _triangle(length) / _triangle(length).sum(dim=0),
                "Each row has to sum to 1: sum along dim=1, with keepdim=True.",
            ),
            Mistake(
                "no keepdim",
                lambda length: _triangle(length) / _triangle(length).sum(dim=1),
                "Without keepdim=True the sums lie as a row, and column j is divided by sum j.",
            ),
            Mistake(
                "divided by the length",
                lambda length: _triangle(length) / length,
                "Row t sees t + 1 positions, not all of them.",
            ),
            Mistake(
                "the other triangle",
                lambda length: _averaging_weights(length).flip(0, 1),
                "Row 0 may see position 0 alone, the last row may see all.",
            ),
        ),
    ),
    Function(
        "1.6",
        title="causal_averages(x): each row becomes the mean of the rows so far, (…, T, E)",
        name="causal_averages",
        reference=_causal_averages,
        cases=_batches,
        hint="The length is x.shape[-2]; weights (T, T) @ x (…, T, E) does a whole batch.",
        mistakes=(
            Mistake(
                "no mask",
                lambda x: x.mean(dim=-2, keepdim=True).expand_as(x),
                "Each row got the mean of all; row t may take in the rows 0 … t.",
            ),
            Mistake("sums", lambda x: x.cumsum(dim=-2), "Divide row t by t + 1."),
            Mistake(
                "along the channels",
                lambda x: x.cumsum(dim=-1) / torch.arange(1, x.shape[-1] + 1),
                "Positions are the last axis but one, dim=-2; channels are not mixed.",
            ),
            Mistake(
                "looking ahead",
                lambda x: _averaging_weights(x.shape[-2]).flip(0, 1) @ x,
                "These are means of a row and those after it.",
            ),
        ),
    ),
    Answer(
        "1.7",
        kind="break",
        title="What position 2 takes in from 4, 2, 9 if softmax runs along the columns, dim=0",
        expected=1 / 3 * 4 + 1 / 2 * 2 + 9,
        tolerance=0.04,
        hint="Column 0 has three scores of 0, column 1 two, column 2 one.",
        mistakes=(
            Mistake("along the rows", 5.0, "This is the mean. Along dim=0 each column sums to 1."),
            Mistake("sums", 15.0, "The three columns share out 1 each among 3, 2 and 1 rows."),
        ),
    ),
)
