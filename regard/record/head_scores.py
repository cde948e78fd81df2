"""Scores of heads, read off their patterns.

Axes: B batch, H heads of a layer, T tokens of one text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from regard._shapes import Bool, Float, Int
from regard.pattern import Pattern
from regard.pattern.readouts import Distance, Entropy, Mass, Offsets
from regard.record._errors import RecordError
from regard.record.heads import Heads, HeadScores
from regard.record.layer import Layer, Tokens
from regard.record.readings import bar
from regard.record.repeats import Controls, Repeats, with_targets
from regard.record.roles import PatternScores, role_of

__all__ = ["Read", "score_heads", "score_pattern", "uniform_pattern"]

Read = Callable[..., tuple[Any, ...]]
"""Of a pattern and readouts."""


def score_heads(
    layers: Sequence[Layer],
    names: Tokens | None,
    *,
    progress: bool | None = None,
    read: Read = Pattern.read,
) -> Heads:
    """Score every head of some layers; `Recording.heads` documents it.

    Args:
        layers: those.
        names: their tokens, if known.
        progress: show a bar.
        read: takes readouts of a pattern, as `Pattern.read` does.
    """
    scores: list[HeadScores] = []
    with bar(len(layers), progress=progress) as advance:
        for layer in layers:
            texts = [_without_padding(text, ids) for text, ids in _texts(layer, names)]
            measured = [score_pattern(text, ids, read) for text, ids in texts]
            uniform = [score_pattern(uniform_pattern(text), ids, read) for text, ids in texts]
            for place, head in enumerate(layer.heads):
                own = _mean([text[place] for text in measured])
                role = role_of(own, _mean([text[place] for text in uniform]))
                scores.append(HeadScores(layer=layer.index, head=head, role=role, **vars(own)))
            advance(1)
    return Heads(scores)


def score_pattern(
    pattern: Pattern, ids: Int[Tensor, " T"] | None, read: Read = Pattern.read
) -> list[PatternScores]:
    """Score the heads of one text, ``(H, T, T)``.

    Args:
        pattern: their weights.
        ids: the tokens, if known.
        read: takes readouts of a pattern, as `Pattern.read` does.
    """
    heads, length, _ = pattern.shape
    if length < 2:
        none = None if ids is None else 0
        return [PatternScores(induction_queries=none, duplicate_token_queries=none)] * heads
    counted = [] if ids is None else [with_targets(ids, following=one) for one in (False, True)]
    # The shares are read row by row: not where no query has anything to count.
    repeats: tuple[Repeats | Controls, ...] = ()
    if ids is not None and any(one.any() for one in counted):
        repeats = Repeats(ids, following=False), Repeats(ids, following=True), Controls(ids)
    first, entropy, distance, offsets, *of_repeats = read(
        pattern, Mass(0), Entropy(), Distance(), Offsets(2), *repeats
    )
    copies = successors = _Repeats(queries=None if ids is None else 0)
    if of_repeats:
        *shares, controls = of_repeats
        copies, successors = map(_Repeats.of, shares, controls, counted)
    highest = uniform_pattern(pattern).entropy()[:, 1:]
    choice = highest > 0  # of more than one key
    spread = torch.where(choice, entropy[:, 1:] / highest, 0).sum(-1) / choice.sum(-1).clamp(min=1)
    # Offset 0 averages over all T rows; row 0, which counts nowhere, is itself on the first token.
    current = (offsets[:, 0] * length - first[:, 0]) / (length - 1)
    return [
        PatternScores(
            previous_token=float(offsets[head, 1]),
            first_token=float(first[head, 1:].mean()),
            current_token=max(0.0, float(current[head])),
            induction=successors.share(head),
            induction_control=successors.control(head),
            induction_queries=successors.queries,
            duplicate_token=copies.share(head),
            duplicate_token_control=copies.control(head),
            duplicate_token_queries=copies.queries,
            spread=float(spread[head]),
            entropy=float(entropy[head, 1:].mean()),
            distance=float(distance[head, 1:].mean()),
        )
        for head in range(heads)
    ]


@dataclass(frozen=True, eq=False)
class _Repeats:
    """The weight that queries give to earlier copies, or to what followed them."""

    queries: int | None
    """How many have any such key; None where tokens are not known."""
    shares: Float[Tensor, " H"] | None = None
    """Mean over those queries."""
    controls: Float[Tensor, " H"] | None = None
    """What the same keys get from other queries."""

    @classmethod
    def of(
        cls,
        shares: Float[Tensor, "H T"],
        controls: Float[Tensor, " H"],
        counted: Bool[Tensor, " T"],
    ) -> _Repeats:
        queries = int(counted.sum())
        if not queries:
            return cls(0)
        return cls(queries, torch.stack([row[counted].mean() for row in shares]), controls)

    def share(self, head: int) -> float | None:
        return None if self.shares is None else float(self.shares[head])

    def control(self, head: int) -> float | None:
        return None if self.controls is None else float(self.controls[head])


def uniform_pattern(pattern: Pattern) -> Pattern:
    """The pattern of heads that spread evenly over the keys that this pattern's may see."""
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
    """Keep what an additive mask hides, and add nothing elsewhere."""
    if bias is None:
        return None
    return torch.zeros_like(bias).masked_fill(bias <= torch.finfo(bias.dtype).min, -torch.inf)


def _extent(pattern: Pattern) -> tuple[int, int]:
    """Where the tokens of a padded sequence start and stop: queries that see themselves."""
    rows = pattern.problem.rows
    index = torch.arange(rows.queries, device=rows.start.device)
    sees = ((rows.start <= index) & (index < rows.stop)).flatten(0, 1).any(0)
    seen = sees.nonzero().flatten()
    if not rows.is_interval or seen.numel() == 0:
        return 0, rows.queries
    return int(seen[0]), int(seen[-1]) + 1


def _cut(pattern: Pattern, start: int, stop: int) -> Pattern:
    """Keep the queries and keys of a range, of a pattern that sees none outside it."""
    if (start, stop) == (0, pattern.shape[-2]):
        return pattern
    part = slice(start, stop)
    return Pattern.of(pattern.problem.crop(part, part), None)


def _texts(layer: Layer, names: Tokens | None) -> list[tuple[Pattern, Tensor | None]]:
    """Each sequence of the batch with its tokens, numbered."""
    pattern = layer.pattern
    if pattern.ndim not in (3, 4) or pattern.shape[-2] != pattern.shape[-1]:
        raise RecordError(
            f"heads are scored over whole sequences, but {layer.name or 'a layer'} was recorded "
            f"as {pattern!r}; record all rows, from the prompt on"
        )
    texts = [pattern] if pattern.ndim == 3 else [pattern[i] for i in range(len(pattern))]
    if names is None:
        return [(text, None) for text in texts]
    if len(names) not in (1, len(texts)) or any(len(n) != pattern.shape[-1] for n in names):
        raise RecordError(
            f"tokens names {len(names)} sequence(s) of {sorted({len(n) for n in names})} "
            f"positions, but {layer.name or 'a layer'} attended over {len(texts)} of "
            f"{pattern.shape[-1]}; record one run at a time"
        )
    numbers = {name: number for number, name in enumerate(sorted({n for t in names for n in t}))}
    ids = [torch.tensor([numbers[name] for name in text]) for text in names]
    return list(zip(texts, ids * len(texts) if len(ids) == 1 else ids, strict=False))


def _without_padding(pattern: Pattern, ids: Tensor | None) -> tuple[Pattern, Tensor | None]:
    start, stop = _extent(pattern)
    known = None if ids is None else ids[start:stop].to(pattern.device)
    return _cut(pattern, start, stop), known


def _mean(texts: list[PatternScores]) -> PatternScores:
    """Average the scores of a head over the texts that have them; queries add up."""

    def over_texts(name: str) -> Any:
        values = [value for text in texts if (value := getattr(text, name)) is not None]
        if not values:
            return None
        return sum(values) if name.endswith("_queries") else sum(values) / len(values)

    return PatternScores(**{field.name: over_texts(field.name) for field in fields(PatternScores)})
