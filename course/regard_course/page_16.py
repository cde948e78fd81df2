"""Exercises of page 16."""

import torch

from regard_course._exercise import Answer, Function, Mistake

__all__ = ["EXERCISES", "TITLE"]

TITLE = "Is attention an explanation?"


def _hide(weights: torch.Tensor, key: int) -> torch.Tensor:
    left = _without(weights, key)
    return left / left.sum(dim=-1, keepdim=True)


def _without(weights: torch.Tensor, key: int) -> torch.Tensor:
    left = weights.clone()
    left[..., key] = 0.0
    return left


def _shared_evenly(weights: torch.Tensor, key: int) -> torch.Tensor:
    shares = weights[..., key : key + 1] / (weights.shape[-1] - 1)
    return _without(weights + shares, key)


def _overlap(weights: torch.Tensor, lost: torch.Tensor) -> float:
    return _common(weights.topk(3).indices, lost.topk(3).indices) / 3


def _common(some: torch.Tensor, others: torch.Tensor) -> int:
    return len({*some.tolist()} & {*others.tolist()})


def _tables() -> list[tuple[torch.Tensor, int]]:
    generator = torch.Generator().manual_seed(16)
    return [
        (torch.randn(shape, generator=generator).softmax(dim=-1), key)
        for shape, key in [((5,), 2), ((3, 7), 0), ((2, 3, 5), 4)]
    ]


def _pairs() -> list[tuple[torch.Tensor, torch.Tensor]]:
    weights = torch.tensor([0.26, 0.17, 0.08, 0.06, 0.04, 0.02, 0.37])
    lost = torch.tensor([0.07, 0.0, 3.15, 4.53, 0.01, 0.03, 0.02])
    return [(weights, lost), (weights, weights.flip(0)), (lost[1:], weights[1:])]


EXERCISES = (
    Answer(
        "16.1",
        kind="predict",
        title="The probability of “hat” where the head that looks most at “bat” may not",
        expected="lost",
        hint="Head 3.4 looks at “bat” as well. Need it take the same from there?",
        mistakes=(
            Mistake(
                "others expected to stand in",
                "as before",
                "Head 3.4 looks at “bat” too, yet only 0.15 of the probability is left.",
            ),
            Mistake(
                "half of the weights expected elsewhere",
                "halved",
                "0.15 of the probability is left: “hat” is then one guess among several.",
            ),
        ),
    ),
    Answer(
        "16.2",
        kind="predict",
        title="The probability of “drum” where one head of five that look at it may not",
        expected="as before",
        hint="Is there another head that looks at “drum”?",
        mistakes=(
            Mistake(
                "a large weight taken for a need",
                "lost",
                "Four other heads of the layer have 0.81 and more on the same word.",
            ),
            Mistake(
                "shares of a whole",
                "halved",
                "Logits are far apart here: what four heads add is enough for certainty.",
            ),
        ),
    ),
    Answer(
        "16.3",
        kind="by hand",
        title="The context of weights 0.5, 0.3, 0.2 and values 10, 20, 30 with key 0 hidden",
        expected=24.0,
        hint="The two that are left keep their ratio, 3 to 2, and sum to 1.",
        mistakes=(
            Mistake(
                "not shared out",
                12.0,
                "Hidden before the softmax, a key leaves its weight to the others: 0.6 and 0.4.",
            ),
            Mistake(
                "shared out evenly",
                24.5,
                "Softmax keeps the ratio of the others: 0.6 and 0.4, not 0.55 and 0.45.",
            ),
            Mistake("nothing hidden", 17.0, "That is the context of all three keys."),
        ),
    ),
    Answer(
        "16.4",
        kind="by hand",
        title="Weights with nothing in the middle that mix 1, 2, 3 as 0.2, 0.6, 0.2 do",
        expected=[0.5, 0.0, 0.5],
        hint="The context is 2. Which mixture of 1 and 3 is that?",
        mistakes=(
            Mistake("no sum of 1", [0.2, 0.0, 0.2], "Weights sum to 1; these give 0.8."),
            Mistake(
                "all on one key", [0.0, 0.0, 1.0], "That gives the context 3, and 2 was asked for."
            ),
        ),
    ),
    Function(
        "16.5",
        title="hide(weights, key): weights (…, S) after one key was hidden from all queries",
        name="hide",
        reference=_hide,
        cases=_tables,
        hint="Softmax without a key: the others share its weight in proportion, so divide by what "
        "is left.",
        mistakes=(
            Mistake("not shared out", _without, "A row sums to 1 again: divide by what is left."),
            Mistake(
                "shared out evenly",
                _shared_evenly,
                "Softmax keeps the ratios of the others. Multiply them, add nothing.",
            ),
            Mistake(
                "a second softmax",
                lambda weights, key: weights.index_fill(-1, torch.tensor(key), -torch.inf).softmax(
                    dim=-1
                ),
                "−∞ belongs into scores. These are weights, whose softmax is nearly even.",
            ),
        ),
    ),
    Function(
        "16.6",
        title="overlap(weights, lost): share of the three most missed among the three most seen",
        name="overlap",
        reference=_overlap,
        cases=_pairs,
        hint="topk(3).indices of both, as sets.",
        mistakes=(
            Mistake(
                "place by place",
                lambda weights, lost: (
                    (weights.topk(3).indices == lost.topk(3).indices).double().mean().item()
                ),
                "The order within the three does not count: compare sets.",
            ),
            Mistake(
                "a number for a share",
                lambda weights, lost: 3 * _overlap(weights, lost),
                "That is how many there are. Divide by 3.",
            ),
            Mistake(
                "the smallest",
                lambda weights, lost: (
                    _common((-weights).topk(3).indices, (-lost).topk(3).indices) / 3
                ),
                "argsort begins with the smallest. Take descending=True, or topk.",
            ),
        ),
    ),
    Answer(
        "16.7",
        kind="break",
        title="The value with which hiding the strongest of ¼, ½, ¼ changes nothing; others 2, 4",
        expected=3.0,
        hint="What is the context of the two keys that are left?",
        mistakes=(
            Mistake(
                "no value",
                0.0,
                "With 0 the context is 1.5, and 3 once the key is hidden.",
            ),
            Mistake(
                "the first value",
                2.0,
                "With 2 the context is 2.5, and 3 once the key is hidden.",
            ),
        ),
    ),
)
