"""The keys on which the heads of one text rest, with one pass over the pattern beside them.

Axes: H heads of a layer, h some of them, T tokens of the text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard._shapes import Bool, Float, Int
from regard.lens.sink_keys import RESTING, mean_of_others
from regard.pattern import Pattern
from regard.pattern.readouts import Received

__all__ = ["Read", "SinkSearch"]

Read = Callable[..., tuple[Any, ...]]
"""A function of a pattern and readouts."""

_ROWS = 128  # from which sinks are guessed, or up to twice as many
_CANDIDATE = 2 / 3  # of the limit, from which on a mean weight in these rows is looked into
_ROUNDING = 1e-3  # of the limit, below which a mean may be above it in truth


class SinkSearch:
    """Finds the sinks of each head of a text by the rule of `regard.lens.sinks`.

    The rule needs mean weights over all rows. Sinks are guessed from some of the rows. Once the
    pattern beside the guessed sinks is read, `correct` decides: the log-sum-exp of a row is that
    beside the sinks plus the sinks' own scores, which gives the exact weights of single keys, and
    no weight is larger than the one beside the sinks, so that a key whose mean is low there is no
    sink. So the result is that of the rule, whatever was guessed.

    Args:
        pattern: the text's, ``(H, T, T)``.
        seers: number of queries that see each key.
        read: takes readouts of a pattern, as `Pattern.read` does.
    """

    def __init__(self, pattern: Pattern, seers: Int[Tensor, "H T"], read: Read) -> None:
        self._pattern = pattern
        self._others = seers - 1
        length = pattern.shape[-1]
        step = max(1, length // _ROWS)
        rows = torch.arange((length - 1) % step, length, step, device="cpu")
        (means,) = read(pattern.at(rows), Received("mean"))
        # What all rows would give if they were like these.
        means = mean_of_others(means * self._others, torch.zeros_like(means), self._others)
        self.sinks: Bool[Tensor, "H T"] = means > RESTING
        """True for the keys on which a head rests."""
        self._candidates = means > _CANDIDATE * RESTING
        self._scores: dict[int, Float[Tensor, "H T"]] = {}
        self._logsumexp: Float[Tensor, "H T"] | None = None
        self._weights: dict[int, Float[Tensor, "H T"]] = {}

    @property
    def on_sinks(self) -> dict[int, Float[Tensor, "H T"]]:
        """Of keys on which some head rests, the weight of each row; 0 in heads that do not."""
        keys = self.sinks.any(0).nonzero().flatten().tolist()
        return {key: torch.where(self.sinks[:, key, None], self._weights[key], 0) for key in keys}

    @property
    def resting(self) -> Float[Tensor, "H 1"]:
        """Mean share on each head's sinks of the rows after the first."""
        share = torch.zeros(len(self.sinks), 1, dtype=torch.float64, device=self.sinks.device)
        for weights in self.on_sinks.values():
            share += weights[:, 1:].double().sum(-1, keepdim=True)
        return (share / max(1, self._pattern.shape[-2] - 1)).clamp(0, 1)

    @property
    def first(self) -> Float[Tensor, "H T"]:
        """The weight of each row on the first key."""
        return self._weights[0]

    @property
    def pattern(self) -> Pattern:
        """The pattern, whose log-sum-exps are known once `correct` was called."""
        return Pattern.of(self._pattern.problem, self._logsumexp, given=False)

    def beside(self, heads: Int[Tensor, " h"] | None = None) -> Pattern:
        """The pattern without the sinks, of all heads or of some."""
        pattern, sinks = self._pattern, self.sinks
        if heads is not None:
            pattern = Pattern.of(pattern.problem.select(heads), None)
            sinks = sinks[heads]
        return pattern.without(sinks) if bool(sinks.any()) else pattern

    def correct(
        self,
        logsumexp: Float[Tensor, "H T"],
        received: Float[Tensor, "H T"],
        itself: Float[Tensor, "H T"],
    ) -> Int[Tensor, " h"]:
        """Find the sinks, by what was read beside those known, and return the heads that change.

        Args:
            logsumexp: of each row.
            received: weight that each key receives.
            itself: weight of each query on its own key.
        """
        may_be = mean_of_others(received, itself, self._others) > (1 - _ROUNDING) * RESTING
        looked_at = (self.sinks | self._candidates | may_be).any(0)
        looked_at[0] = True
        keys = looked_at.nonzero().flatten().tolist()
        for key in keys:
            if key not in self._scores:
                self._scores[key] = self._scores_of(key)
        whole = logsumexp
        for key in keys:
            own = torch.where(self.sinks[:, key, None], self._scores[key], -torch.inf)
            whole = torch.logaddexp(whole, own)
        self._logsumexp = whole
        total = torch.zeros(whole.shape, dtype=torch.float64, device=whole.device)
        own = torch.zeros_like(total)
        self._weights = {}
        for key in keys:
            # A row without visible keys has the log-sum-exp −∞.
            weights = (self._scores[key] - whole).exp().nan_to_num(nan=0, posinf=0).clamp(max=1)
            total[:, key], own[:, key] = weights.double().sum(-1), weights[:, key]
            self._weights[key] = weights
        found = mean_of_others(total, own, self._others) > RESTING
        changed = (found != self.sinks).any(-1).nonzero().flatten()
        self.sinks = found
        return changed

    def _scores_of(self, key: int) -> Float[Tensor, "H T"]:
        """Return the score of each row and a key, −∞ where it is hidden."""
        problem = self._pattern.problem
        column = problem.crop(slice(0, problem.queries), slice(key, key + 1))
        return Pattern.of(replace(column, sink=None), None).logsumexp
