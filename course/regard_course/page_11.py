"""Exercises of page 11."""

from __future__ import annotations

import torch
from torch import Tensor

from regard_course._exercise import Answer, Function, Mistake

__all__ = ["EXERCISES", "TITLE"]

TITLE = "Positions"


def _angles(x: Tensor, exponent: float = 2.0, base: float = 10_000.0) -> Tensor:
    """Angles (T, D/2) of rows (T, D)."""
    pairs = torch.arange(x.shape[1] // 2) * exponent / x.shape[1]
    return torch.arange(len(x))[:, None] / base**pairs


def _rotated(x: Tensor, angles: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def _rotate(x: Tensor) -> Tensor:
    return _rotated(x, _angles(x))


def _neighbours(x: Tensor) -> Tensor:
    a, b = x[:, ::2], x[:, 1::2]
    cos, sin = _angles(x).cos(), _angles(x).sin()
    return torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)


def _added(x: Tensor) -> Tensor:
    return x + torch.cat([_angles(x).sin(), _angles(x).cos()], dim=-1)


def _alibi_bias(slopes: Tensor, length: int) -> Tensor:
    positions = torch.arange(length)
    distance = positions[:, None] - positions
    return (-slopes[:, None, None] * distance).masked_fill(distance < 0, -torch.inf)


def _raised(slopes: Tensor, length: int) -> Tensor:
    bias = _alibi_bias(slopes, length)
    return torch.where(bias.isfinite(), -bias, bias)


def _not_masked(slopes: Tensor, length: int) -> Tensor:
    positions = torch.arange(length)
    return -slopes[:, None, None] * (positions[:, None] - positions).abs()


def _zero_for_later(slopes: Tensor, length: int) -> Tensor:
    return _alibi_bias(slopes, length).nan_to_num(neginf=0.0)


def _from_the_start(slopes: Tensor, length: int) -> Tensor:
    bias = _alibi_bias(slopes, length)
    places = -slopes[:, None, None] * torch.arange(length).expand(length, length)
    return torch.where(bias.isfinite(), places, bias)


def _slopes() -> list[tuple[Tensor, int]]:
    return [
        (torch.tensor([0.5, 0.25]), 3),
        (torch.tensor([1.0, 0.5, 0.125]), 7),
    ]


def _rows() -> list[tuple[Tensor]]:
    generator = torch.Generator().manual_seed(11)
    return [(torch.randn(shape, generator=generator),) for shape in [(3, 2), (5, 6), (7, 10)]]


EXERCISES = (
    Answer(
        "11.1",
        kind="predict",
        title="The change of the last context when two earlier words swap, without positions",
        expected="not at all",
        hint=(
            "The context is a sum over the keys, and a sum does not depend on the order of its "
            "terms."
        ),
        mistakes=(
            Mistake(
                "the mask taken for an order",
                "a little",
                "The causal mask hides later keys alone, and the last word sees all.",
            ),
            Mistake(
                "other words",
                "as much as with other words",
                "The same keys get the same weights, in another order of terms.",
            ),
        ),
    ),
    Answer(
        "11.2",
        kind="predict",
        title="How many tokens back the head looks when keys are rotated by one position more",
        expected=2,
        hint=(
            "The head looks for a key that claims to stand one place before the query. Where does "
            "such a key really stand?"
        ),
        mistakes=(
            Mistake(
                "the keys rotated back",
                0,
                "The key at the query's own place now claims to stand after it.",
            ),
            Mistake(
                "no change", 1, "The key one place back now claims to stand at the query's place."
            ),
        ),
    ),
    Answer(
        "11.3",
        kind="by hand",
        title="The product of (1, 2) at position 7 and (4, 1) at position 5, a quarter turn a step",
        expected=-6.0,
        hint=(
            "Only the difference of the positions counts. Two quarter turns make (4, 1) to "
            "(−4, −1)."
        ),
        mistakes=(
            Mistake("not rotated", 6.0, "The positions differ by 2, which is half a turn."),
            Mistake("one quarter turn", -7.0, "The positions differ by two, so by two quarters."),
            Mistake("a quarter turn back", 7.0, "The positions differ by two, so by two quarters."),
        ),
    ),
    Answer(
        "11.4",
        kind="by hand",
        title="The last of four queries' weights by ALiBi with a slope of ln 2 and equal scores",
        expected=[1 / 15, 2 / 15, 4 / 15, 8 / 15],
        tolerance=0.003,
        hint="Each step back halves a key's share. Divide 1, ½, ¼, ⅛ by their sum.",
        mistakes=(
            Mistake(
                "the first word nearest",
                [8 / 15, 4 / 15, 2 / 15, 1 / 15],
                "The last key stands at the query's own place, at distance 0.",
            ),
            Mistake(
                "not divided by the sum", [1 / 8, 1 / 4, 1 / 2, 1.0], "Weights of a row sum to 1."
            ),
            Mistake("no positions", [0.25] * 4, "The distances are 3, 2, 1 and 0."),
            Mistake(
                "distances for factors",
                [0.0, 1 / 6, 2 / 6, 3 / 6],
                "The distance is taken from the score, so shares shrink by a factor at each step.",
            ),
        ),
    ),
    Function(
        "11.5",
        title="rotate(x): queries or keys (T, D), row t rotated by t · 10000^(−2i/D) in the pair i",
        name="rotate",
        reference=_rotate,
        cases=_rows,
        hint=(
            "Split the channels into two halves, a and b. A rotation makes a · cos − b · sin and "
            "b · cos + a · sin of them."
        ),
        mistakes=(
            Mistake(
                "the other way round",
                lambda x: _rotated(x, -_angles(x)),
                "The minus stands before the sine in the first half.",
            ),
            Mistake(
                "neighbours for pairs",
                _neighbours,
                "That is the paper's own pairing; here channels i and i + D/2 make a pair.",
            ),
            Mistake(
                "i for 2i",
                lambda x: _rotated(x, _angles(x, exponent=1.0)),
                "With i counting pairs, the exponent is −2i/D.",
            ),
            Mistake("added", _added, "Sinusoids are added; rotary positions multiply."),
            Mistake(
                "positions from 1",
                lambda x: _rotated(torch.cat([x[:1], x]), _angles(torch.cat([x[:1], x])))[1:],
                "Row 0 stands at position 0 and is not rotated.",
            ),
        ),
    ),
    Function(
        "11.6",
        title="alibi_bias(slopes, length): what is added to scores, (H, T, T), −∞ for later keys",
        name="alibi_bias",
        reference=_alibi_bias,
        cases=_slopes,
        hint=(
            "Rows are queries: the distance is positions[:, None] - positions, and it is taken "
            "away."
        ),
        mistakes=(
            Mistake("added for taken away", _raised, "What is further back must get less."),
            Mistake("no mask", _not_masked, "Later keys are hidden: their entries are −∞."),
            Mistake("0 for −∞", _zero_for_later, "A later key with 0 is the most favoured of all."),
            Mistake(
                "rows for columns",
                lambda slopes, length: _alibi_bias(slopes, length).mT,
                "Rows are queries, and row 0 sees key 0 alone.",
            ),
            Mistake(
                "distance from the start",
                _from_the_start,
                "The distance is that of the key from its query, not from the first word.",
            ),
        ),
    ),
    Answer(
        "11.7",
        kind="break",
        title="The questions whose answer changes when queries are rotated and keys are not",
        expected="both",
        hint="Without its rotation, does a key still tell where it stands? Does the query?",
        mistakes=(
            Mistake(
                "the distance still counts",
                "order",
                "The score now changes with the query's position while the distance stays.",
            ),
            Mistake(
                "the order still counts",
                "distance",
                "Keys that are not rotated say nothing of their places, so they are a set again.",
            ),
            Mistake(
                "half a rotation suffices",
                "neither",
                "Only a product of two rotated vectors depends on the difference of their angles.",
            ),
        ),
    ),
)
