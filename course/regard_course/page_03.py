"""Exercises of page 3."""

import torch

from regard_course._exercise import Answer, Function, Mistake

__all__ = ["EXERCISES", "TITLE"]

TITLE = "One head: query, key and value"


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, divisor: float, dim: int = -1
) -> torch.Tensor:
    return (query @ key.T / divisor).softmax(dim=dim) @ value


def _head(
    x: torch.Tensor,
    Wq: torch.Tensor,
    Wk: torch.Tensor,
    Wv: torch.Tensor,
) -> torch.Tensor:
    return _attend(x @ Wq, x @ Wk, x @ Wv, Wq.shape[1] ** 0.5)


def _heads() -> list[tuple[torch.Tensor, ...]]:
    """Rows and three matrices; the first as large as two positions, so that all shapes fit."""
    generator = torch.Generator().manual_seed(3)
    sizes = [(2, 2, 2), (5, 3, 2), (7, 3, 5)]
    return [
        tuple(torch.randn(shape, generator=generator) for shape in [(length, E), *3 * [(E, D)]])
        for length, E, D in sizes
    ]


def _weight(query: torch.Tensor, key: torch.Tensor, i: int, j: int) -> float:
    scaled = key @ query[i] / query.shape[1] ** 0.5
    return float((scaled[j] - scaled.logsumexp(dim=0)).exp())


def _weight_over_queries(query: torch.Tensor, key: torch.Tensor, i: int, j: int) -> float:
    return _weight(key, query, j, i)


def _pairs() -> list[tuple[torch.Tensor, torch.Tensor, int, int]]:
    generator = torch.Generator().manual_seed(4)
    query, key = torch.randn(2, 5, 3, generator=generator).unbind()
    return [(query, key, 1, 4), (query, key, 3, 0), (30 * query, key, 2, 2)]


EXERCISES = (
    Answer(
        "3.1",
        kind="predict",
        title="The scores of “warm” and “by”, one way and the other, once there are matrices",
        expected="different",
        hint="One is the query of “warm” times the key of “by”. And the other?",
        mistakes=(
            Mistake(
                "query and key taken for the same",
                "equal",
                "They were on page 2. Now Wq makes the queries and Wk the keys.",
            ),
        ),
    ),
    Answer(
        "3.2",
        kind="predict",
        title="The channel that the trained query is made from",
        expected="constant",
        hint="Every position, marked or not, has to ask the same question.",
        mistakes=(
            Mistake(
                "query for key",
                "mark",
                "The mark is what answers: the key is made from it. Five of six rows have no mark.",
            ),
            Mistake(
                "query for value",
                "first number",
                "The numbers are what is handed over: the value is made from them.",
            ),
        ),
    ),
    Answer(
        "3.3",
        kind="by hand",
        title="The scaled score of the query (2, 0, 2, 0) and the key (1, 5, 3, 1)",
        expected=4.0,
        hint="The dot product is 2·1 + 2·3; both have D = 4 entries.",
        mistakes=(
            Mistake("no scale", 8.0, "Multiply the dot product by 1/√D."),
            Mistake("divided by D", 2.0, "The scale is 1/√D: 1/2 for D = 4, not 1/4."),
        ),
    ),
    Answer(
        "3.4",
        kind="by hand",
        title="How many numbers are trained in Head(5, 4), which reads 7 positions",
        expected=60.0,
        tolerance=0.1,
        hint="Three matrices, each of shape (E, D).",
        mistakes=(
            Mistake("one matrix", 20.0, "Query, key and value have a matrix each."),
            Mistake(
                "a set for each position",
                420.0,
                "All positions share the matrices; a head takes sequences of any length.",
            ),
            Mistake("a fourth matrix", 80.0, "One head has three; page 7 adds one for the output."),
        ),
    ),
    Function(
        "3.5",
        title="head(x, Wq, Wk, Wv): the context of one head, (T, E) to (T, D)",
        name="head",
        reference=_head,
        cases=_heads,
        hint="Make query, key and value; then the lines of page 2, with 1/√D before softmax.",
        mistakes=(
            Mistake(
                "no scale",
                lambda x, q, k, v: _attend(x @ q, x @ k, x @ v, 1.0),
                "Divide the scores by √D before softmax.",
            ),
            Mistake(
                "divided by D",
                lambda x, q, k, v: _attend(x @ q, x @ k, x @ v, q.shape[1]),
                "The scale is 1/√D.",
            ),
            Mistake(
                "√E for √D",
                lambda x, q, k, v: _attend(x @ q, x @ k, x @ v, x.shape[1] ** 0.5),
                "What is multiplied is a query and a key, and these have D entries.",
            ),
            Mistake(
                "softmax over the wrong axis",
                lambda x, q, k, v: _attend(x @ q, x @ k, x @ v, q.shape[1] ** 0.5, dim=0),
                "Each query shares out its weight among keys: dim=-1.",
            ),
            Mistake(
                "no transpose",
                lambda x, q, k, v: (x @ q @ (x @ k) / q.shape[1] ** 0.5).softmax(dim=-1) @ (x @ v),
                "Scores are query @ key.T: (T, D) @ (D, T).",
            ),
            Mistake(
                "query and key exchanged",
                lambda x, q, k, v: _head(x, k, q, v),
                "Rows of the scores are queries: query @ key.T, not key @ query.T.",
            ),
            Mistake(
                "rows of x summed",
                lambda x, q, k, _: (x @ q @ (x @ k).T / q.shape[1] ** 0.5).softmax(dim=-1) @ x,
                "What is summed are the values, x @ Wv.",
            ),
        ),
    ),
    Function(
        "3.6",
        title="weight(query, key, i, j): the one weight that query i gives to key j",
        name="weight",
        reference=_weight,
        cases=_pairs,
        hint="The scaled scores of query i are key @ query[i] / √D; subtract their logsumexp at j.",
        mistakes=(
            Mistake(
                "no scale",
                lambda query, key, i, j: float((key @ query[i]).softmax(dim=0)[j]),
                "Divide the scores by √D, where D = query.shape[1].",
            ),
            Mistake(
                "the sum over queries",
                _weight_over_queries,
                "The denominator runs over all keys of query i, not over the queries of key j.",
            ),
            Mistake(
                "i and j exchanged",
                lambda query, key, i, j: _weight(query, key, j, i),
                "i numbers the query, j the key.",
            ),
            Mistake(
                "the logarithm of the weight",
                lambda query, key, i, j: float(
                    (key @ query[i] / query.shape[1] ** 0.5).log_softmax(dim=0)[j]
                ),
                "Take the exponential of it.",
            ),
        ),
    ),
    Answer(
        "3.7",
        kind="break",
        title="What every position takes in once Wk is all zeros",
        expected="the mean of the values",
        hint="Which scores does a key of zeros make, and which weights do these make?",
        mistakes=(
            Mistake(
                "a score of 0 taken for a weight of 0",
                "nothing",
                "Equal scores give equal weights, here 1/T each.",
            ),
            Mistake(
                "itself alone",
                "its own value",
                "With keys of zeros no key differs from another, not even a position's own.",
            ),
        ),
    ),
)
