"""The evidence for a role: a score over many queries against controls, and its interval.

Axes: H heads of a layer, K distinct tokens of all texts; if tokens are not known, each query counts
as a distinct one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard._shapes import Float
from regard.lens.naming.discoveries import upper_tail
from regard.lens.naming.roles import ENOUGH, LEAD, VARIED, Evidence

__all__ = [
    "Means",
    "Score",
    "Tally",
    "beside_control",
    "difference",
    "evidence",
    "itself",
    "lead",
    "mean_of",
    "nearness",
    "student",
]

Score = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""A function of the mean share and of the mean of its strongest control, ``(H,)`` each: the score,
and its derivatives by both."""

_NORMAL = 1.959964  # 97.5 % quantile of the standard normal distribution


@dataclass(frozen=True, eq=False)
class Tally:
    """Sums over the queries of each token of one text, in float64."""

    queries: Float[Tensor, "H K"]
    """Number of queries of each token, (H, K)."""
    share: Float[Tensor, "H K"]
    """Sum of the share over the queries of each token, (H, K)."""
    controls: Mapping[str, Float[Tensor, "H K"]]
    """Sum of the share under each control over the queries of each token, (H, K)."""


@dataclass(frozen=True, eq=False)
class Means:
    """Means over the queries of each text, then over the texts that have any."""

    queries: Float[Tensor, "H K"]
    """Number of queries of each token, over all texts, (H, K)."""
    weight: Float[Tensor, "H K"]
    """Weight of each token's queries in the mean, (H, K); their sum is 1, or 0 without queries."""
    share: Float[Tensor, "H K"]
    """Each token's contribution to the mean share, (H, K)."""
    controls: Mapping[str, Float[Tensor, "H K"]]
    """Each token's contribution to the mean share under each control, (H, K)."""

    def evidence(self, score: Score) -> list[Evidence | None]:
        """Score each head; None without queries."""
        share = self.share.sum(-1)
        strongest = torch.zeros_like(self.share)
        if self.controls:
            controls = torch.stack(list(self.controls.values()))  # (controls, H, K)
            highest = controls.sum(-1).nan_to_num().argmax(0)
            strongest = controls[highest, torch.arange(len(share), device=share.device)]
        control = strongest.sum(-1)
        value, by_share, by_control = score(share, control)
        residual = by_share[:, None] * (self.share - share[:, None] * self.weight)
        residual += by_control[:, None] * (strongest - control[:, None] * self.weight)
        tokens = (self.queries > 0).sum(-1)
        free = (tokens - 1).clamp_min(1)
        error = (residual.square().sum(-1) * tokens / free).sqrt()
        return evidence(value, error, self.queries.sum(-1), tokens, is_lead=score is lead)


def evidence(
    value: Float[Tensor, " H"],
    error: Float[Tensor, " H"],
    queries: Float[Tensor, " H"],
    clusters: Float[Tensor, " H"],
    *,
    is_lead: bool,
) -> list[Evidence | None]:
    """Make the evidence of scores; None for a head without queries.

    Args:
        value: the scores.
        error: their standard errors.
        queries: how many they are measured over.
        clusters: number of distinct tokens, or of documents, among which they vary.
        is_lead: whether the scores are leads, which are tested against `LEAD`.
    """
    margin = student((clusters - 1).clamp_min(1)) * error
    found: list[Evidence | None] = []
    for mean, plus_minus, standard, count, different in zip(
        *(value.tolist(), margin.tolist(), error.tolist(), queries.tolist(), clusters.tolist()),
        strict=True,
    ):
        is_known = count >= ENOUGH and different >= VARIED
        one = Evidence(
            score=mean,
            margin=plus_minus if is_known else None,
            queries=int(count),
            p_value=_p_value(mean, standard, int(different)) if is_known and is_lead else None,
        )
        found.append(one if count else None)
    return found


def mean_of(tallies: Sequence[Tally]) -> Means:
    """Average over texts, which have the same controls."""
    counts = [tally.queries.sum(-1, keepdim=True) for tally in tallies]
    texts = torch.stack([count > 0 for count in counts]).sum(0).clamp_min(1)

    def mean(sums: Sequence[Tensor]) -> Tensor:
        each = [part / count.clamp_min(1) for part, count in zip(sums, counts, strict=True)]
        return torch.stack(each).sum(0) / texts

    return Means(
        queries=torch.stack([tally.queries for tally in tallies]).sum(0),
        weight=mean([tally.queries for tally in tallies]),
        share=mean([tally.share for tally in tallies]),
        controls={
            name: mean([tally.controls[name] for tally in tallies]) for name in tallies[0].controls
        },
    )


def beside_control(
    sums: Float[Tensor, "H K"], controls: Float[Tensor, "H K"], queries: Float[Tensor, "H K"]
) -> list[Evidence | None]:
    """Return mean − control over the queries, with its interval from the variance between clusters.

    Args:
        sums: what was measured, summed over the queries of each of K clusters, such as documents.
        controls: the same under the control.
        queries: number of queries in each cluster.

    Returns:
        For each of H heads the evidence; None without queries.

    >>> sums, queries = torch.tensor([[3.0, 4.0, 5.0, 4.0]]), torch.full((1, 4), 10.0)
    >>> (one,) = beside_control(sums, torch.ones(1, 4), queries)
    >>> round(one.score, 3), round(one.margin, 3), one.queries
    (0.3, 0.129, 40)
    """
    total = queries.sum(-1, keepdim=True).clamp_min(1)
    means = Means(queries, queries / total, sums / total, {"control": controls / total})
    return means.evidence(difference)


def difference(share: Tensor, control: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return share − control, and its derivatives."""
    return share - control, torch.ones_like(share), -torch.ones_like(control)


def lead(share: Tensor, control: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return (share − control) / (1 − control), at most 1, and its derivatives.

    0 if the control is 1.

    >>> score, by_share, by_control = lead(torch.tensor([0.6]), torch.tensor([0.2]))
    >>> score, by_share, by_control
    (tensor([0.5000]), tensor([1.2500]), tensor([-0.6250]))
    """
    left = 1 - control
    some = left > 1e-9  # less is rounding
    left = torch.where(some, left, 1)
    score = torch.where(some, (share - control) / left, 0)
    return score, some / left, torch.where(some, (share - 1) / left**2, 0)


def nearness(share: Tensor, control: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return 1 − share / control of two distances, and its derivatives."""
    control = torch.where(control > 0, control, torch.inf)
    return 1 - share / control, -1 / control, share / control**2


def itself(share: Tensor, control: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the share, and its derivatives; it has no control."""
    return share, torch.ones_like(share), torch.zeros_like(control)


def _p_value(score: float, error: float, tokens: int) -> float:
    """Return the one-sided p-value of a lead against one of `LEAD`."""
    above = score - LEAD
    t = above / error if error > 0 else math.copysign(math.inf, above)
    return upper_tail(t, tokens - 1)


def student(free: Tensor) -> Tensor:
    """Return the 97.5 % quantile of Student's t by degrees of freedom, to 1 % from three on.

    Abramowitz and Stegun 1964, equation 26.7.5.
    """
    x = _NORMAL
    terms = (
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
    )
    inverse = 1 / free.double()
    return x + sum(
        (term * inverse**power for power, term in enumerate(terms, 1)), torch.zeros_like(inverse)
    )
