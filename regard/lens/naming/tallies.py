"""Sums per token of what the heads of one text do, and of their controls.

Axes: H heads of a layer, T tokens of the text, K distinct tokens of all texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard._arguments import tensor_of
from regard._shapes import Bool, Float, Int
from regard.lens.naming.evidence import Tally
from regard.lens.naming.repeats import Controlled, ControlledRepeats, with_targets
from regard.lens.naming.roles import VARIED
from regard.lens.naming.sink_search import Read, SinkSearch
from regard.pattern import Pattern
from regard.pattern.readouts import Distance, Entropy, Lag, LagWeights, Mass, Readout, Received

__all__ = ["Read", "Tallier", "TextTallies", "uniform_pattern"]

_NEAR = (Lag(1), Lag(0), Lag(-1))  # the key before a query, its own, and the one behind
_ITSELF = 3 + 1  # place of the query's own key among the readouts
_ROWS = 128  # of a mask that are counted at once


@dataclass(frozen=True, kw_only=True, eq=False)
class TextTallies:
    """The tallies of one text, with the patterns they are of."""

    tallies: dict[str, Tally]
    sinks: Bool[Tensor, "H T"]
    """True for the keys on which a head rests."""
    on_sinks: Mapping[int, Float[Tensor, "H T"]]
    """Of keys on which some head rests, the weight of each row; 0 in heads that do not."""
    pattern: Pattern
    """The pattern, whose log-sum-exps are known."""
    entropy: Float[Tensor, "H T"]
    """Of each row beside the sinks."""
    received: Float[Tensor, "H T"]
    """Of each key beside the sinks."""
    also: tuple[Any, ...]
    """Results of the further readouts, of the pattern beside the sinks."""
    whole: tuple[Any, ...]
    """Results of those of the pattern with its sinks."""
    uniform: tuple[Any, ...]
    """Results of those of uniform heads over the keys beside the sinks."""


class Tallier:
    """Sums the shares of each token's queries in one text, and those of the controls.

    Args:
        ids: the tokens, numbered over all texts of a batch.
        count: number of distinct tokens of the batch.
        separators: True for those that separate others (`separators.is_separator`); None if the
            tokens' names are not known.
    """

    def __init__(
        self, ids: Int[Tensor, " T"], count: int, separators: Bool[Tensor, " T"] | None
    ) -> None:
        self._ids = ids
        self._count = count
        self._separators = separators

    def of_text(
        self,
        pattern: Pattern,
        read: Read,
        also: Sequence[Readout[Any, Any]] = (),
        whole: Sequence[Readout[Any, Any]] = (),
        uniform: Sequence[Readout[Any, Any]] = (),
    ) -> TextTallies:
        """Tally a text of two tokens or more.

        Args:
            pattern: its pattern, ``(H, T, T)``.
            read: takes readouts of a pattern, as `Pattern.read` does.
            also: further readouts, to take in the same pass beside the sinks.
            whole: likewise, of the pattern with its sinks.
            uniform: likewise, of uniform heads beside the sinks.
        """
        seers, seen, sees_first = _sight(pattern)
        search = SinkSearch(pattern, seers, read)
        known = self._separators is not None
        repeats: tuple[ControlledRepeats, ...] = ()
        if known and any(with_targets(self._ids, following=one).any() for one in (False, True)):
            repeats = (ControlledRepeats(self._ids),)
        marks: tuple[Mass, ...] = ()
        if self._separators is not None and int(self._separators[1:].sum()) >= VARIED:
            later_marks = self._separators.clone()
            later_marks[0] = False  # the first token has a share of its own
            marks = (Mass(later_marks),)
        readouts = (Entropy(), Distance(), Received(), *_NEAR, *marks, *repeats, *also)
        beside = search.beside()
        results = read(beside, *readouts)
        logsumexp = beside.logsumexp
        while len(wrong := search.correct(logsumexp, results[2], results[_ITSELF].weights)):
            part = search.beside(wrong)
            put = partial(_put, wrong)
            results = tuple(map(put, results, read(part, *readouts)))
            logsumexp = put(logsumexp, part.logsumexp)
        first = search.first
        entropy, distance, received, *others = results
        near, others = _weights_of(others[: len(_NEAR)]), others[len(_NEAR) :]
        further = tuple(others[len(others) - len(also) :])
        del others[len(others) - len(also) :]
        evenly, alike = _uniform_beside(search)
        even_results = evenly.read(Entropy(), Distance(), *_NEAR, *marks, *uniform)
        highest, far, *of_even = (_each(lambda one: one[alike], one) for one in even_results)
        seen_near, of_even = _weights_of(of_even[: len(_NEAR)]), of_even[len(_NEAR) :]
        of_marks, of_uniform = of_even[: len(marks)], tuple(of_even[len(marks) :])
        later = torch.ones_like(first, dtype=torch.bool)
        later[:, 0] = False  # the first token sees only itself
        chosen = later & (highest > 0)  # more than one key is visible
        even = (-highest).exp()  # a uniform head's weight on each visible key
        spread = torch.where(chosen, entropy / highest.clamp_min(1e-9), 0)
        result = {
            "resting": self._tally(later, search.resting.expand_as(first)),
            "first_token": self._tally(
                later & (seen > 1), first, uniform=sees_first / seen.clamp_min(1)
            ),
            "spread": self._tally(chosen, spread),
            "entropy": self._tally(chosen, entropy),
            "distance": self._tally(chosen, distance, uniform=far),
        }
        for name, back in (("previous_token", 1), ("current_token", 0), ("next_token", -1)):
            sees = seen_near[back] > 0
            result[name] = self._tally(
                chosen if back == 0 else chosen & sees,
                near[back],
                uniform=even * sees,
                others=_from_other_queries(near[back], received, seers, back=back),
            )
        if marks:
            share, (even_share,) = others.pop(0), of_marks
            result["separator"] = self._tally(chosen & (even_share > 0), share, uniform=even_share)
        if repeats:
            ((copies, successors),) = others
            result["duplicate_token"] = self._of_targets(copies, even, following=False)
            result["induction"] = self._of_targets(successors, even, following=True)
        whole_pattern = search.pattern
        return TextTallies(
            tallies=result,
            sinks=search.sinks,
            on_sinks=search.on_sinks,
            pattern=whole_pattern,
            uniform=of_uniform,
            entropy=entropy,
            received=received,
            also=further,
            whole=tuple(read(whole_pattern, *whole)) if whole else (),
        )

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


def _each(change: Callable[..., Tensor], *results: Any) -> Any:
    """Apply a function to tensors, or to those in tuples."""
    if isinstance(results[0], Tensor):
        return change(*results)
    parts = [_each(change, *of_one) for of_one in zip(*results, strict=True)]
    kind = type(results[0])
    return kind(*parts) if hasattr(kind, "_fields") else kind(parts)  # a named tuple or another


def _put(heads: Int[Tensor, " h"], results: Any, part: Any) -> Any:
    """Return a readout's results with those of some heads in their places."""
    return _each(lambda old, new: old.index_copy(0, heads, new), results, part)


def _uniform_beside(search: SinkSearch) -> tuple[Pattern, Int[Tensor, " H"]]:
    """Return uniform patterns over the keys beside the sinks, and which of them is each head's.

    Heads that see the same keys share one.
    """
    evenly, sinks = uniform_pattern(search.beside()), search.sinks
    index = torch.arange(len(sinks), device=sinks.device)
    if not search.pattern.problem.rows.are_shared:
        return evenly, index
    alike = sinks.unique(dim=0, return_inverse=True)[1]
    firsts = torch.full((int(alike.max()) + 1,), len(sinks), device=sinks.device)
    firsts.scatter_reduce_(0, alike, index, "amin")
    return Pattern.of(evenly.problem.select(firsts), None), alike


def _hidden_only(bias: Tensor | None) -> Tensor | None:
    """Return a bias of −∞ where the given bias is −∞, and 0 elsewhere."""
    if bias is None:
        return None
    return torch.zeros_like(bias).masked_fill(bias <= torch.finfo(bias.dtype).min, -torch.inf)


def _weights_of(near: Sequence[LagWeights]) -> dict[int, Float[Tensor, "H T"]]:
    """Return each query's weight on the key so far back: 1, 0 or −1; 0 if there is none."""
    return {lag.d: one.weights for lag, one in zip(_NEAR, near, strict=True)}


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
    key = (index - back).clamp(0, len(index) - 1)
    others = seers[:, key] - 1
    elsewhere = (received[:, key] - weights).clamp_min(0) / others.clamp_min(1)
    return torch.where(others > 0, elsewhere, weights)


def _sight(
    pattern: Pattern,
) -> tuple[Int[Tensor, "H T"], Int[Tensor, "H T"], Bool[Tensor, "H T"]]:
    """Count the queries that see each key, and the keys that each query sees; who sees key 0."""
    rows, (heads, length, _) = pattern.problem.rows, pattern.shape
    if rows.is_interval:
        start, stop = (bound.flatten(0, 1) for bound in (rows.start, rows.stop))
        change = start.new_zeros(len(start), length + 1)
        some = (start < stop).to(change.dtype)
        change.scatter_add_(1, start, some).scatter_add_(1, stop, -some)
        seers, seen = change.cumsum(-1)[:, :length], (stop - start).clamp_min(0)
        first = (start == 0) & (stop > 0)
        return seers.expand(heads, -1), seen.expand(heads, -1), first.expand(heads, -1)
    whole = slice(0, length)
    counts, each, firsts = [], [], []
    for top in range(0, length, _ROWS):
        visible = rows.visible(slice(top, min(top + _ROWS, length)), whole).flatten(0, 1)
        counts.append(visible.sum(-2))
        each.append(visible.sum(-1))
        firsts.append(visible[..., 0])
    return (
        tensor_of(sum(counts)).expand(heads, -1),
        torch.cat(each, -1).expand(heads, -1),
        torch.cat(firsts, -1).expand(heads, -1),
    )
