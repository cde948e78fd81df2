"""The exercises of page 13: online softmax, attention in parts, weights from the log-sum-exp."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from regard_course._exercise import Answer, Function, Mistake

__all__ = ["EXERCISES", "TITLE"]

TITLE = "Fused attention by hand"


def _online_softmax(blocks: Sequence[Tensor]) -> Tensor:
    """Log-sum-exp (L,) of rows whose scores come as blocks of columns, (L, S₁), (L, S₂), …."""
    largest, total = _start(blocks)
    for scores in blocks:
        new = torch.maximum(largest, scores.amax(dim=1))
        total = total * torch.exp(largest - new) + torch.exp(scores - new[:, None]).sum(dim=1)
        largest = new
    return largest + total.log()


def _start(blocks: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    return torch.full((len(blocks[0]),), -math.inf), torch.zeros(len(blocks[0]))


def _without_correction(blocks: Sequence[Tensor]) -> Tensor:
    largest, total = _start(blocks)
    for scores in blocks:
        largest = torch.maximum(largest, scores.amax(dim=1))
        total = total + torch.exp(scores - largest[:, None]).sum(dim=1)
    return largest + total.log()


def _correction_inverted(blocks: Sequence[Tensor]) -> Tensor:
    largest, total = blocks[0].amax(dim=1), torch.zeros(len(blocks[0]))
    for scores in blocks:
        new = torch.maximum(largest, scores.amax(dim=1))
        total = total * torch.exp(new - largest) + torch.exp(scores - new[:, None]).sum(dim=1)
        largest = new
    return largest + total.log()


def _without_maximum(blocks: Sequence[Tensor]) -> Tensor:
    _, total = _start(blocks)
    for scores in blocks:
        total = total + torch.exp(scores).sum(dim=1)
    return total.log()


def _without_largest(blocks: Sequence[Tensor]) -> Tensor:
    scores = torch.cat(list(blocks), dim=1)
    return torch.logsumexp(scores, dim=1) - scores.amax(dim=1)


def _score_blocks() -> Sequence[tuple[Sequence[Tensor]]]:
    generator = torch.Generator().manual_seed(13)
    rising = [torch.randn(3, width, generator=generator) + width for width in (2, 5, 7)]
    large = [1000.0 * block for block in rising]
    return [(rising,), (rising[::-1],), (large,)]


def _join(context_a: Tensor, logsumexp_a: Tensor, context_b: Tensor, logsumexp_b: Tensor) -> Tensor:
    """Context (L, Dv) over the keys of two parts, from the contexts over each."""
    joint = torch.logaddexp(logsumexp_a, logsumexp_b)
    share_a, share_b = torch.exp(logsumexp_a - joint), torch.exp(logsumexp_b - joint)
    return share_a[:, None] * context_a + share_b[:, None] * context_b


def _mean_of_contexts(
    context_a: Tensor, _logsumexp_a: Tensor, context_b: Tensor, _logsumexp_b: Tensor
) -> Tensor:
    return (context_a + context_b) / 2


def _sum_of_contexts(
    context_a: Tensor, _logsumexp_a: Tensor, context_b: Tensor, _logsumexp_b: Tensor
) -> Tensor:
    return context_a + context_b


def _shares_of_logarithms(
    context_a: Tensor, logsumexp_a: Tensor, context_b: Tensor, logsumexp_b: Tensor
) -> Tensor:
    share_a = (logsumexp_a / (logsumexp_a + logsumexp_b))[:, None]
    return share_a * context_a + (1 - share_a) * context_b


def _overflowing_shares(
    context_a: Tensor, logsumexp_a: Tensor, context_b: Tensor, logsumexp_b: Tensor
) -> Tensor:
    sum_a, sum_b = logsumexp_a.exp()[:, None], logsumexp_b.exp()[:, None]
    return (sum_a * context_a + sum_b * context_b) / (sum_a + sum_b)


def _shares_exchanged(
    context_a: Tensor, logsumexp_a: Tensor, context_b: Tensor, logsumexp_b: Tensor
) -> Tensor:
    return _join(context_a, logsumexp_b, context_b, logsumexp_a)


def _parts() -> Sequence[tuple[Tensor, Tensor, Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(13)
    context_a, context_b = torch.randn(2, 5, 3, generator=generator).unbind()
    logsumexp_a, logsumexp_b = torch.randn(2, 5, generator=generator).unbind()
    return [
        (context_a, logsumexp_a, context_b, logsumexp_b),
        (context_a, logsumexp_a + 2000, context_b, logsumexp_b + 2000),
    ]


EXERCISES = (
    Answer(
        "13.1",
        kind="predict",
        title="GiB that the weights of one head over 65,536 tokens take, at 4 bytes a number",
        expected=16,
        tolerance=0.01,
        hint="65,536 is 2¹⁶. How many rows has the table, and how many columns?",
        mistakes=(
            Mistake(
                "numbers for bytes", 4, "The table has 2³² numbers, each of which takes 4 bytes."
            ),
            Mistake(
                "half a table",
                8,
                "Half of the weights are 0 under the causal mask, but a table stores them as well.",
            ),
            Mistake("one row", 2**-12, "A query has that many weights; there are 65,536 queries."),
        ),
    ),
    Answer(
        "13.2",
        kind="predict",
        title="Pairs of blocks that are visited, with 8 blocks of queries and 8 of keys",
        expected=36,
        hint="The first block of queries sees 1 block of keys, the second 2.",
        mistakes=(
            Mistake(
                "all of them", 64, "Blocks of keys that lie wholly in the future are not visited."
            ),
            Mistake(
                "no diagonal", 28, "A block of queries sees the block of keys at its own place too."
            ),
            Mistake(
                "half",
                32,
                "Of the pairs on the diagonal none is left out, so it is more than half.",
            ),
        ),
    ),
    Answer(
        "13.3",
        kind="by hand",
        title="Largest score and sum at the end of the scores 1, 1, 2",
        expected=[2.0, 1 + 2 / math.e],
        hint="After the second score m = 1 and ℓ = 2. Correct ℓ by e^(1 − 2), then add e^(2 − 2).",
        mistakes=(
            Mistake(
                "no correction", [2.0, 3.0], "ℓ was relative to 1; the largest score is now 2."
            ),
            Mistake(
                "correction the wrong way",
                [2.0, 1 + 2 * math.e],
                "Relative to a larger maximum, terms are smaller: the factor is e^(old − new).",
            ),
            Mistake(
                "no maximum",
                [2.0, 2 * math.e + math.e**2],
                "ℓ is the sum of e^(score − m), not of e^score.",
            ),
        ),
    ),
    Answer(
        "13.4",
        kind="by hand",
        title="A weight from query, key and log-sum-exp",
        expected=math.exp(2 - 2.5),
        tolerance=0.002,
        hint="The dot product is 4 and the scaled score 4/√4 = 2. Then exp(score − log-sum-exp).",
        mistakes=(
            Mistake("no scale", math.exp(4 - 2.5), "The score is the dot product times 1/√D."),
            Mistake(
                "D for √D", math.exp(1 - 2.5), "The dot product is divided by √4 = 2, not by 4."
            ),
            Mistake("wrong sign", math.exp(0.5), "It is exp(score − log-sum-exp): at most 1."),
            Mistake(
                "score over log-sum-exp",
                2 / 2.5,
                "A quotient of exponentials is the exponential of a difference.",
            ),
            Mistake("no exponential", -0.5, "score − log-sum-exp is the logarithm of the weight."),
        ),
    ),
    Function(
        "13.5",
        kind="write",
        title="online_softmax(blocks): log-sum-exp of rows that come in blocks of columns",
        name="online_softmax",
        reference=_online_softmax,
        cases=_score_blocks,
        hint="Before a block is added to a row's sum, multiply that by e^(old − new maximum).",
        mistakes=(
            Mistake(
                "no correction",
                _without_correction,
                "The sum so far was relative to the old maximum; multiply it by e^(old − new).",
            ),
            Mistake(
                "correction the wrong way",
                _correction_inverted,
                "Relative to a larger maximum, terms are smaller: the factor is e^(old − new).",
            ),
            Mistake(
                "no maximum",
                _without_maximum,
                "The exponential of a score of a thousand overflows; subtract the maximum first.",
            ),
            Mistake(
                "sum without maximum",
                _without_largest,
                "The sum is relative to the maximum: the log-sum-exp is maximum + ln(sum).",
            ),
        ),
    ),
    Function(
        "13.6",
        kind="write",
        title="join(context_a, logsumexp_a, context_b, logsumexp_b): context over all keys",
        name="join",
        reference=_join,
        cases=_parts,
        hint="The joint log-sum-exp is torch.logaddexp of both. What share of it is that of a?",
        mistakes=(
            Mistake(
                "mean of the contexts",
                _mean_of_contexts,
                "A part counts by its share of the denominator, which its log-sum-exp gives.",
            ),
            Mistake(
                "sum of the contexts",
                _sum_of_contexts,
                "Each context was divided by its own sum; the shares of both must add up to 1.",
            ),
            Mistake(
                "shares of logarithms",
                _shares_of_logarithms,
                "Denominators add up, their logarithms do not: take the exponential first.",
            ),
            Mistake(
                "overflow",
                _overflowing_shares,
                "e to the power of some thousands is infinite; subtract the joint log-sum-exp.",
            ),
            Mistake(
                "shares exchanged",
                _shares_exchanged,
                "The share of a part comes from its own log-sum-exp.",
            ),
        ),
    ),
    Answer(
        "13.7",
        kind="break",
        title="The first whole score whose exponential is infinite in float32",
        expected=89,
        tolerance=0.1,
        hint="Try torch.exp(torch.tensor(80.0)), then larger ones.",
        mistakes=(
            Mistake(
                "float64", 710, "That is where float64 ends; tensors of torch are float32 at first."
            ),
            Mistake("the last finite one", 88, "e^88 is 1.65 · 10³⁸, which a float32 still holds."),
            Mistake("float16", 12, "That is where float16 ends, at 65,504."),
        ),
    ),
)
