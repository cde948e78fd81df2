"""Sums per token of what the heads of one text do, and of their controls.

Axes: H heads of a layer, T tokens of the text, K distinct tokens of all texts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard._arguments import tensor_of
from regard._shapes import Bool, Float, Int
from regard.lens.naming.evidence import Tally
from regard.lens.naming.repeats import Controlled, ControlledRepeats, with_targets
from regard.pattern import Pattern
from regard.pattern.readouts import Distance, Entropy, Mass, Received

__all__ = ["Read", "Tallier", "uniform_pattern"]

Read = Callable[..., tuple[Any, ...]]
"""A function of a pattern and readouts."""

_NEAR = 128  # rows whose weights on the last keys are read at once


class Tallier:
    """Sums the shares of each token's queries in one text, and those of the controls.

    Args:
        ids: the tokens, numbered over all texts of a batch.
        count: number of distinct tokens of the batch.
    """

    def __init__(self, ids: Int[Tensor, " T"], count: int) -> None:
        self._ids = ids
        self._count = count

    def of_text(self, pattern: Pattern, read: Read, *, known: bool) -> dict[str, Tally]:
        """Return the tallies of a text of two tokens or more, ``(H, T, T)``, by score."""
        repeats: tuple[ControlledRepeats, ...] = ()
        if known and any(with_targets(self._ids, following=one).any() for one in (False, True)):
            repeats = (ControlledRepeats(self._ids),)
        first, entropy, distance, received, *of_repeats = read(
            pattern, Mass(0), Entropy(), Distance(), Received(), *repeats
        )
        uniform = uniform_pattern(pattern)
        evenly, highest, far = uniform.read(Mass(0), Entropy(), Distance())
        later = torch.ones_like(first, dtype=torch.bool)
        later[:, 0] = False  # the first token sees only itself
        current, previous = _near(pattern)
        seen_current, seen_previous = (weights > 0 for weights in _near(uniform))
        even = (-highest).exp()  # a uniform head's weight on each visible key
        seers = _seers(uniform)
        chosen = highest > 0  # more than one key is visible
        spread = torch.where(chosen, entropy / highest.clamp_min(1e-9), 0)
        result = {
            "previous_token": self._tally(
                later & seen_previous,
                previous,
                uniform=even,
                others=_from_other_queries(previous, received, seers, back=1),
            ),
            "current_token": self._tally(
                later,
                current,
                uniform=even * seen_current,
                others=_from_other_queries(current, received, seers, back=0),
            ),
            "first_token": self._tally(later, first, uniform=evenly),
            "spread": self._tally(later & chosen, spread),
            "entropy": self._tally(later, entropy),
            "distance": self._tally(later, distance, uniform=far),
        }
        if of_repeats:
            ((copies, successors),) = of_repeats
            result["duplicate_token"] = self._of_targets(copies, even, following=False)
            result["induction"] = self._of_targets(successors, even, following=True)
        return result

    def _of_targets(
        self, repeats: Controlled, even: Float[Tensor, "H T"], *, following: bool
    ) -> Tally:
        tally = self._tally(
            repeats.targets > 0,
            repeats.share,
            uniform=repeats.targets * even,
            shuffled=repeats.shuffled,
        )
        # All queries that a key is a target of have one token: the key's, or the one before it.
        shift = int(following)
        keys = repeats.others.shape[-1]
        others = self._by_token(repeats.others[:, shift:], self._ids[: keys - shift])
        return replace(tally, controls={**tally.controls, "others": others})

    def _tally(
        self,
        chosen: Bool[Tensor, "H T"],
        share: Float[Tensor, "H T"],
        **controls: Float[Tensor, "H T"],
    ) -> Tally:
        """Sum over the chosen queries."""

        def total(values: Tensor) -> Tensor:
            return self._by_token(torch.where(chosen, values, 0), self._ids)

        return Tally(
            queries=total(torch.ones_like(share)),
            share=total(share),
            controls={name: total(control) for name, control in controls.items()},
        )

    def _by_token(self, values: Float[Tensor, "H T"], ids: Tensor) -> Float[Tensor, "H K"]:
        values = values.double()
        place = ids.expand(values.shape)
        return values.new_zeros(len(values), self._count).scatter_add_(1, place, values)


def uniform_pattern(pattern: Pattern) -> Pattern:
    """Return the pattern of uniform heads over the keys that are visible in this pattern."""
    problem = pattern.problem
    flat = replace(
        problem,
        query=torch.zeros_like(problem.query[..., :1]),
        key=torch.zeros_like(problem.key[..., :1]),
        rows=replace(
            problem.rows,
            bias=_hidden_only(problem.rows.bias),
            spans=None if problem.rows.spans is None else problem.rows.spans.without_shifts(),
        ),
        alibi=None,
        sink=None,
    )
    return Pattern.of(flat, None)


def _hidden_only(bias: Tensor | None) -> Tensor | None:
    """Return a bias of −∞ where the given bias is −∞, and 0 elsewhere."""
    if bias is None:
        return None
    return torch.zeros_like(bias).masked_fill(bias <= torch.finfo(bias.dtype).min, -torch.inf)


def _near(pattern: Pattern) -> tuple[Float[Tensor, "H T"], Float[Tensor, "H T"]]:
    """Return each query's weight on its own key, and on the one before it; 0 if there is none."""
    length = pattern.shape[-1]
    current, previous = [], []
    for start in range(0, length, _NEAR):
        stop, before = min(start + _NEAR, length), max(start - 1, 0)
        block = pattern.crop((start, stop), (before, stop)).dense()
        back = start - before
        current.append(block.diagonal(back, -2, -1))
        previous.append(block.diagonal(back - 1, -2, -1))
    of_previous = torch.cat(previous, dim=-1)
    missing = length - of_previous.shape[-1]  # the first query has no key before it
    return torch.cat(current, dim=-1), torch.nn.functional.pad(of_previous, (missing, 0))


def _from_other_queries(
    weights: Float[Tensor, "H T"],
    received: Float[Tensor, "H T"],
    seers: Int[Tensor, "H T"],
    *,
    back: int,
) -> Float[Tensor, "H T"]:
    """Return the mean weight of the key so far back from the other queries that see it.

    If no other query sees the key, its own weight.
    """
    index = torch.arange(weights.shape[-1], device=weights.device)
    key = (index - back).clamp_min(0)
    others = seers[:, key] - 1
    elsewhere = (received[:, key] - weights).clamp_min(0) / others.clamp_min(1)
    return torch.where(others > 0, elsewhere, weights)


def _seers(pattern: Pattern) -> Int[Tensor, "H T"]:
    """Return the number of queries that see each key."""
    rows, (heads, length, _) = pattern.problem.rows, pattern.shape
    if rows.is_interval:
        start, stop = (bound.flatten(0, 1) for bound in (rows.start, rows.stop))
        change = start.new_zeros(len(start), length + 1)
        some = (start < stop).to(change.dtype)
        change.scatter_add_(1, start, some).scatter_add_(1, stop, -some)
        return change.cumsum(-1)[:, :length].expand(heads, -1)
    blocks = (slice(first, min(first + _NEAR, length)) for first in range(0, length, _NEAR))
    whole = slice(0, length)
    counts = sum(rows.visible(block, whole).sum(-2).flatten(0, 1) for block in blocks)
    return tensor_of(counts).expand(heads, -1)
