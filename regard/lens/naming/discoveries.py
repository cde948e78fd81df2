"""How sure many names at once are: tail probabilities, and the false discovery rate over all heads.

Axes: N tests.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard._shapes import Float

__all__ = ["false_discovery_rates", "upper_tail"]

_MANY = 500  # degrees of freedom; of more, Student's t is the normal distribution to 1e-3


def false_discovery_rates(p_values: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """Return the smallest false discovery rate at which each test is a discovery.

    Of the tests with a rate up to q, at most a fraction q is expected to be false, if they are
    independent or positively dependent: the step-up procedure of Benjamini and Hochberg 1995,
    "Controlling the False Discovery Rate", as adjusted p-values.

    >>> false_discovery_rates(torch.tensor([0.01, 0.5, 0.03])).round(decimals=3)
    tensor([0.0300, 0.5000, 0.0450])
    """
    count = len(p_values)
    order = p_values.argsort(descending=True)
    rank = torch.arange(count, 0, -1, device=p_values.device)
    least = (p_values[order] * count / rank).cummin(0).values.clamp(max=1)
    return torch.empty_like(least).scatter_(0, order, least)


def upper_tail(t: float, free: int) -> float:
    """Return the probability that Student's t with so many degrees of freedom is above `t`.

    Finite series; Abramowitz and Stegun 1964, equations 26.7.3 and 26.7.4.

    >>> [round(upper_tail(t, free), 4) for t, free in ((0.0, 5), (2.0, 10), (-2.0, 3), (9.0, 4))]
    [0.5, 0.0367, 0.9303, 0.0004]
    """
    if free > _MANY:
        return math.erfc(t / math.sqrt(2)) / 2
    angle = math.atan2(t, math.sqrt(free))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = free % 2
    term = math.cos(angle) if odd else 1.0
    total = term if free > 1 else 0.0
    for step in range(1 + odd, free - 2, 2):
        term *= square * step / (step + 1)
        total += term
    both = (2 / math.pi) * (angle + sine * total) if odd else sine * total
    return min(1.0, max(0.0, (1 - both) / 2))
