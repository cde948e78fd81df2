"""Exercises of page 10."""

import math

import torch

from regard_course._exercise import Answer, Function, Mistake

__all__ = ["EXERCISES", "TITLE"]

TITLE = "What heads learn"


def _look_back(length: int, distance: int) -> torch.Tensor:
    return torch.ones(length, length).triu(-distance).tril(-distance)


def _score_at(
    weights: torch.Tensor, ids: list[int], offset: int = 1, *, over_all: bool = False
) -> float:
    """Mean weight on the keys so far after earlier copies, over the queries that have copies."""
    total, queries = 0.0, 0
    for query, token in enumerate(ids):
        copies = [key for key in range(query) if ids[key] == token]
        queries += bool(copies) or over_all
        total += sum(
            float(weights[query, key + offset]) for key in copies if 0 <= key + offset < len(ids)
        )
    return total / queries


def _induction_score(weights: torch.Tensor, ids: list[int]) -> float:
    return _score_at(weights, ids)


def _patterns() -> list[tuple[torch.Tensor, list[int]]]:
    generator = torch.Generator().manual_seed(10)
    texts = [[5, 3, 2, 5, 3], [0, 1, 2, 3, 1, 4, 2, 1], [7, 4, 6, 4, 5, 6, 4, 7, 5, 6, 3]]
    return [
        (torch.randn(len(ids), len(ids), generator=generator).exp().tril(), ids) for ids in texts
    ]


def _cases() -> list[tuple[torch.Tensor, list[int]]]:
    return [(weights / weights.sum(dim=-1, keepdim=True), ids) for weights, ids in _patterns()]


EXERCISES = (
    Answer(
        "10.1",
        kind="predict",
        title="The position at which the last “red” of “. red kite blue boat red” looks",
        expected=2.0,
        tolerance=0.01,
        hint="Which row says that it comes after “red”?",
        mistakes=(
            Mistake(
                "the earlier copy",
                1.0,
                "“red” at position 1 says that it comes after the full stop. Its key is no “red”.",
            ),
            Mistake(
                "itself", 5.0, "The last row says that it comes after “boat”, so its key is that."
            ),
            Mistake(
                "the token before",
                4.0,
                "The first head looks there. The second compares words, not positions.",
            ),
        ),
    ),
    Answer(
        "10.2",
        kind="predict",
        title="What becomes of the loss without one of five induction heads",
        expected="less than 1",
        hint="Are there others that do the same?",
        mistakes=(
            Mistake(
                "what looks counted as needed",
                "about 8",
                "Four other heads look where the one that is switched off looked.",
            ),
            Mistake(
                "a share of the work counted for each",
                "about 2",
                "The four that are left look at the same place, and what they write suffices.",
            ),
        ),
    ),
    Answer(
        "10.3",
        kind="predict",
        title="The loss near which a model of one layer stays",
        expected=math.log(4),
        tolerance=0.02,
        hint="Among how many things is it left to guess?",
        mistakes=(
            Mistake(
                "the pairs taken for seen",
                0.0,
                "The row of a thing does not say which colour stood before it.",
            ),
            Mistake(
                "all things", math.log(8), "Of the eight things, it sees which four the text has."
            ),
            Mistake(
                "all words", math.log(16), "It learns that a thing comes next, and which are there."
            ),
        ),
    ),
    Answer(
        "10.4",
        kind="by hand",
        title="What the last “red” of “. red kite red boat red” gives to positions 0 to 5",
        expected=[0, 0, 0.5, 0, 0.5, 0],
        hint="Which rows come after “red”? Equal scores have equal weights.",
        mistakes=(
            Mistake(
                "the latest alone",
                [0, 0, 0, 0, 1, 0],
                "The key says what came before, not how long ago: both scores are 10.",
            ),
            Mistake(
                "the first alone",
                [0, 0, 1, 0, 0, 0],
                "“boat” comes after “red” as well, so both scores are 10.",
            ),
            Mistake(
                "the copies themselves",
                [0, 0.5, 0, 0.5, 0, 0],
                "The keys are the words before. Those of the two “red” are “.” and “kite”.",
            ),
        ),
    ),
    Answer(
        "10.5",
        kind="by hand",
        title="The score that gives one key of six the weight 0.99, where the others score 0",
        expected=math.log(495),
        tolerance=0.006,
        hint="eˢ / (eˢ + 5) = 0.99. Solve it for eˢ.",
        mistakes=(
            Mistake(
                "one other key",
                math.log(99),
                "Each of the five others adds e⁰ = 1 to the sum.",
            ),
            Mistake(
                "a score of 0 taken for a weight of 0",
                0.99,
                "The exponential of 0 is 1: the five others have a weight, too.",
            ),
            Mistake("the exponential", 495.0, "That is eˢ. The score is its logarithm."),
        ),
    ),
    Function(
        "10.6",
        title="look_back(length, distance): takes one-hot positions to those so far before them",
        name="look_back",
        reference=_look_back,
        cases=lambda: [(6, 1), (7, 2), (5, 3)],
        hint="torch.diag puts numbers on a diagonal; a negative one lies below the main diagonal.",
        mistakes=(
            Mistake(
                "looks ahead",
                lambda length, distance: _look_back(length, distance).T,
                "Row 3 is position 3; its 1 belongs into a column before 3. Transpose it.",
            ),
            Mistake(
                "goes round the end",
                lambda length, distance: torch.eye(length).roll(-distance, dims=1),
                "The first positions have nothing so far before them, and get the last ones.",
            ),
            Mistake(
                "itself",
                lambda length, distance: _look_back(length, 0 * distance),
                "The identity leaves each position where it is.",
            ),
            Mistake(
                "one too many",
                lambda length, distance: _look_back(length, distance + 1),
                "The token before stands at distance 1.",
            ),
        ),
    ),
    Function(
        "10.7",
        title="induction_score(weights, ids): mean weight on what followed earlier copies",
        name="induction_score",
        reference=_induction_score,
        cases=_cases,
        hint="Which earlier positions have the query's token? Add up the weights one later.",
        mistakes=(
            Mistake(
                "the copies themselves",
                lambda weights, ids: _score_at(weights, ids, 0),
                "That is the score of a duplicate-token head. Take the key after each copy.",
            ),
            Mistake(
                "before the copies",
                lambda weights, ids: _score_at(weights, ids, -1),
                "An induction head looks at what came after the copy: key + 1.",
            ),
            Mistake(
                "a mean over all queries",
                lambda weights, ids: _score_at(weights, ids, over_all=True),
                "Queries whose token has not stood before have nothing to look at. Leave them out.",
            ),
        ),
    ),
    Answer(
        "10.8",
        kind="break",
        title="The word that gets as much as “kite” if the text begins with “red”",
        expected="red",
        hint="Position 0 sees itself alone. What does the first head write into its row?",
        mistakes=(
            Mistake(
                "the word after",
                "blue",
                "“blue” comes after “kite”, and the last word is no “kite”.",
            ),
            Mistake(
                "the word before",
                "boat",
                "“boat” comes after “blue”, and the last word is no “blue”.",
            ),
        ),
    ),
)
