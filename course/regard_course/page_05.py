"""Exercises of page 5."""

import torch

from regard_course._exercise import Answer, Function, Mistake

__all__ = ["EXERCISES", "TITLE"]

TITLE = "The causal mask"


def _causal_mask(length: int) -> torch.Tensor:
    return torch.ones(length, length).tril().bool()


def _hide_upper(scores: torch.Tensor, value: float, diagonal: int = 1) -> torch.Tensor:
    """Write a value into the upper triangle of each table: (..., T, T) to the same."""
    return scores.masked_fill(torch.ones_like(scores).triu(diagonal).bool(), value)


def _causal_weights(scores: torch.Tensor) -> torch.Tensor:
    return _hide_upper(scores, -torch.inf).softmax(dim=-1)


def _tables() -> list[tuple[torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [
        (torch.randn(shape, generator=generator),) for shape in [(3, 3), (2, 5, 5), (2, 3, 7, 7)]
    ]


EXERCISES = (
    Answer(
        "5.1",
        kind="predict",
        title="The weight that row 0 gives itself under the causal mask",
        expected=1.0,
        tolerance=0.0006,
        hint="Which keys does row 0 see, and what do the weights of a row sum to?",
        mistakes=(
            Mistake(
                "the weight without a mask",
                0.1551,
                "The other five weights go to 0, and each row still sums to 1.",
            ),
            Mistake("an equal share", 1 / 6, "Five of the six keys are hidden from row 0."),
        ),
    ),
    Answer(
        "5.2",
        kind="predict",
        title="What row 0 gives to the later keys if 0 stands in place of −∞",
        expected="more than half",
        hint="Softmax takes the exponential of each score. What is that of 0?",
        mistakes=(
            Mistake(
                "a score of 0 taken for a weight of 0",
                "nothing",
                "The exponential of 0 is 1, so each later key gets a weight.",
            ),
            Mistake(
                "a score of 0 taken for a small one",
                "less than half",
                "Row 0's own score is 0.65, so each of the five others counts e⁰ = 1 against 1.92.",
            ),
        ),
    ),
    Answer(
        "5.3",
        kind="by hand",
        title="The causal weights of the query at position 1, whose scaled scores are 1, 1, 5",
        expected=[0.5, 0.5, 0.0],
        hint="Which of the three keys does position 1 see?",
        mistakes=(
            Mistake("no mask", [0.0177, 0.0177, 0.9647], "The key at position 2 is later than 1."),
            Mistake(
                "0 for −∞",
                [0.4223, 0.4223, 0.1554],
                "A score of 0 has the exponential 1; only −∞ gives the weight 0.",
            ),
            Mistake("itself hidden", [1.0, 0.0, 0.0], "A query sees its own position too: j ≤ i."),
        ),
    ),
    Answer(
        "5.4",
        kind="by hand",
        title="The context at position 1, for scaled scores 0, ln 3, 0 and values 8, 4, 100",
        expected=5.0,
        hint="The exponentials of the two scores that are seen are 1 and 3.",
        mistakes=(
            Mistake("no mask", 24.0, "The value 100 stands at position 2, which is later."),
            Mistake(
                "mask after softmax",
                4.0,
                "The weights 1/5 and 3/5 sum to 4/5 alone; hide the key before softmax.",
            ),
            Mistake("no weights", 6.0, "4 counts three times as much as 8, since e^(ln 3) = 3."),
        ),
    ),
    Function(
        "5.5",
        title="causal_mask(length): a (length, length) table, True where query i may see key j",
        name="causal_mask",
        reference=_causal_mask,
        cases=lambda: [(1,), (3,), (7,)],
        hint="torch.tril keeps what stands on or below the diagonal; .bool() makes truth values.",
        mistakes=(
            Mistake(
                "the other triangle",
                lambda length: torch.ones(length, length).triu().bool(),
                "Rows are queries: row 0 sees column 0 alone, the last row sees all.",
            ),
            Mistake(
                "True where a key is hidden",
                lambda length: torch.ones(length, length).triu(1).bool(),
                "Many libraries mean it so; here True is what may be seen. Put ~ before it.",
            ),
            Mistake(
                "itself hidden",
                lambda length: torch.ones(length, length).tril(-1).bool(),
                "A query sees its own position too: j ≤ i. torch.tril without a second argument.",
            ),
            Mistake(
                "numbers for truth values",
                lambda length: torch.ones(length, length).tril(),
                "Ones and zeros are right, as numbers. Add .bool().",
            ),
        ),
    ),
    Function(
        "5.6",
        title="causal_weights(scores): the causal weights of scaled scores, (…, T, T) to the same",
        name="causal_weights",
        reference=_causal_weights,
        cases=_tables,
        hint="masked_fill with −∞ in the upper triangle, then softmax along the keys, dim=-1.",
        mistakes=(
            Mistake(
                "0 for −∞",
                lambda scores: _hide_upper(scores, 0.0).softmax(dim=-1),
                "A score of 0 has the exponential 1, so later keys get a weight.",
            ),
            Mistake(
                "mask after softmax",
                lambda scores: scores.softmax(dim=-1).tril(),
                "What is left of a row no longer sums to 1. Mask before softmax.",
            ),
            Mistake(
                "softmax over the wrong axis",
                lambda scores: _hide_upper(scores, -torch.inf).softmax(dim=-2),
                "Now the columns sum to 1. Each query shares out its weight among keys: dim=-1.",
            ),
            Mistake(
                "itself hidden",
                lambda scores: _hide_upper(scores, -torch.inf, 0).softmax(dim=-1),
                "Row 0 sees nothing and becomes nan. The diagonal may be seen: diagonal=1.",
            ),
            Mistake(
                "the lower triangle hidden",
                lambda scores: scores.masked_fill(
                    torch.ones_like(scores).tril(-1).bool(), -torch.inf
                ).softmax(dim=-1),
                "Rows are queries here, so what comes later stands above the diagonal.",
            ),
            Mistake(
                "no mask", lambda scores: scores.softmax(dim=-1), "The later keys are still seen."
            ),
            Mistake(
                "no softmax",
                lambda scores: _hide_upper(scores, -torch.inf),
                "These are the masked scores. Softmax makes weights of them.",
            ),
        ),
    ),
    Answer(
        "5.7",
        kind="break",
        title="Which rows of the weights become nan if the diagonal is hidden too",
        expected="row 0",
        hint="What is the sum of the exponentials of a row in which every score is −∞?",
        mistakes=(
            Mistake(
                "a nan that spreads",
                "every row",
                "Softmax computes each row by itself, and row 1 still sees key 0.",
            ),
            Mistake(
                "0/0 taken for 0",
                "no row",
                "Row 0 sees no key: its exponentials are all 0, so is their sum, and 0/0 is nan.",
            ),
        ),
    ),
)
