"""Exercises of page 17."""

import torch

from regard_course._exercise import Answer, Function, Mistake

__all__ = ["EXERCISES", "TITLE"]

TITLE = "From a weight to the answer"


def _moved(weights: torch.Tensor, value: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    return weights * (value @ output).norm(dim=-1)


def _shares(
    weights: torch.Tensor, value: torch.Tensor, output: torch.Tensor, direction: torch.Tensor
) -> torch.Tensor:
    return weights * (value @ output @ direction)


def _by_value(weights: torch.Tensor, value: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    del output
    return weights * value.norm(dim=-1)


def _without_direction(
    weights: torch.Tensor, value: torch.Tensor, output: torch.Tensor, direction: torch.Tensor
) -> torch.Tensor:
    del direction
    return _moved(weights, value, output)


def _heads() -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(17)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    return [
        (draw(queries, keys).softmax(dim=-1), draw(keys, dim), draw(dim, width))
        for queries, keys, dim, width in [(1, 4, 3, 5), (3, 5, 2, 7), (2, 3, 5, 5)]
    ]


def _towards() -> list[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(18)
    return [(*head, torch.randn(head[2].shape[1], generator=generator)) for head in _heads()]


EXERCISES = (
    Answer(
        "17.1",
        kind="predict",
        title="The word from which a head moves most, of four",
        expected="kite",
        hint="The row (3, 0, 4) has the length 5.",
        mistakes=(
            Mistake("the largest weight", "Tom", "Half of a row of length 0.1 is 0.05."),
            Mistake(
                "equal weights taken for equal parts",
                "drum",
                "Its row has the length 1, and that of “kite” the length 5.",
            ),
            Mistake(
                "the length of a row without its weight",
                "the",
                "A tenth of a row of length 2 is 0.2.",
            ),
        ),
    ),
    Answer(
        "17.2",
        kind="predict",
        title="How many times as large a weight of 0.02 is without a sink key of 0.96",
        expected="25 times",
        hint="The three that are left share 1 as they shared 0.04.",
        mistakes=(
            Mistake(
                "not shared out",
                "as before",
                "Left out before the softmax, a key leaves its weight to the others.",
            ),
            Mistake(
                "shared out evenly",
                "17 times",
                "Softmax keeps the ratios of the others: 2 to 1 to 1, not 0.32 more for each.",
            ),
        ),
    ),
    Answer(
        "17.3",
        kind="predict",
        title="By how much a logit falls without a head whose share is 0.65",
        expected=1.65,
        hint="What does the MLP find in the third channel, and who wrote it?",
        mistakes=(
            Mistake(
                "its share",
                0.65,
                "The MLP finds nothing in the third channel now, and adds nothing either.",
            ),
            Mistake("the part of the MLP alone", 1.0, "What the head itself wrote is gone, too."),
            Mistake(
                "the contrast",
                1.45,
                "That is what “kite” less “drum” loses; “drum” loses 0.2 of it.",
            ),
        ),
    ),
    Answer(
        "17.4",
        kind="by hand",
        title="What is moved by weights 0.6, 0.3, 0.1 from the rows (0, 0.5), (3, 4), (0, 10)",
        expected=[0.3, 1.5, 1.0],
        hint="The lengths are 0.5, 5 and 10.",
        mistakes=(
            Mistake(
                "channels added up",
                [0.3, 2.1, 1.0],
                "The length of (3, 4) is √(9 + 16) = 5, not 7.",
            ),
            Mistake(
                "squares of lengths",
                [0.15, 7.5, 10.0],
                "The length is the root of the sum of squares.",
            ),
            Mistake("lengths alone", [0.5, 5.0, 10.0], "Multiply each by its weight."),
        ),
    ),
    Answer(
        "17.5",
        kind="by hand",
        title="What four parts add to kite − drum: 1, 4, 2, 0.5 and 3, 1, 2, 0.5",
        expected=[-2.0, 3.0, 0.0, 0.0],
        hint="Of each part, what it adds to “kite” less what it adds to “drum”.",
        mistakes=(
            Mistake(
                "the other way round",
                [2.0, -3.0, 0.0, 0.0],
                "That is drum − kite: what adds to “drum” is positive there.",
            ),
            Mistake(
                "no signs",
                [2.0, 3.0, 0.0, 0.0],
                "The embedding adds more to “drum” than to “kite”: 1 − 3 is negative.",
            ),
            Mistake(
                "“kite” alone",
                [1.0, 4.0, 2.0, 0.5],
                "What adds to both alike decides nothing between them: subtract.",
            ),
        ),
    ),
    Function(
        "17.6",
        title="moved(weights, value, output): weight times the length of what each key writes",
        name="moved",
        reference=_moved,
        cases=_heads,
        hint="The length is that of a row of value @ output.",
        mistakes=(
            Mistake(
                "the length of the value",
                _by_value,
                "W_O may stretch a value, or take it to nothing. Multiply first.",
            ),
            Mistake(
                "squares",
                lambda weights, value, output: weights * (value @ output).square().sum(dim=-1),
                "The length is the root of the sum of squares: norm(dim=-1).",
            ),
            Mistake(
                "the length of the sum",
                lambda weights, value, output: (weights @ value @ output).norm(dim=-1),
                "That is all that a query gets. Asked is what comes from each key, (L, S).",
            ),
        ),
    ),
    Function(
        "17.7",
        title="shares(weights, value, output, direction): what each key adds to a word's logit",
        name="shares",
        reference=_shares,
        cases=_towards,
        hint="One number for each key: value @ output @ direction. It keeps its sign.",
        mistakes=(
            Mistake(
                "no signs",
                lambda weights, value, output, direction: _shares(
                    weights, value, output, direction
                ).abs(),
                "What lowers the word's logit counts negative. Leave out the absolute value.",
            ),
            Mistake(
                "a direction of length 1",
                lambda weights, value, output, direction: _shares(
                    weights, value, output, direction / direction.norm()
                ),
                "A logit is the product with the row as it is. Do not divide by its length.",
            ),
            Mistake(
                "what is moved",
                _without_direction,
                "A length has no direction. Take the product with the word's row.",
            ),
        ),
    ),
    Answer(
        "17.8",
        kind="break",
        title="The row as long as (3, 4) with which half of each writes nothing",
        expected=[-3.0, -4.0],
        hint="The two products must cancel.",
        mistakes=(
            Mistake(
                "a row of length 0",
                [0.0, 0.0],
                "From it nothing is moved, and the head writes half of (3, 4).",
            ),
            Mistake("the same row", [3.0, 4.0], "The head then writes (3, 4)."),
            Mistake(
                "a right angle",
                [-4.0, 3.0],
                "It is as long, and the head writes (−0.5, 3.5).",
            ),
        ),
    ),
)
