"""What the heads of a model do on a text, read off their patterns.

Axes: H heads of a layer, T tokens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from regard.mask import causal
from regard.pattern import Pattern
from regard.record.heads import figures
from regard.record.roles import Figures, Role, role_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxtyping import Float, Int
    from torch import Tensor

__all__ = ["HeadReading", "Reading", "read_heads"]

_FOLLOWING = 5  # likeliest next tokens kept
# Heads by how much there is to see in them; a tie goes to the earlier layer.
_TELLING = (
    Role.INDUCTION,
    Role.SAME,
    Role.PREVIOUS,
    Role.LOCAL,
    Role.MIXED,
    Role.ITSELF,
    Role.FIRST,
    Role.SPREAD,
    Role.ALONE,
)


@dataclass(frozen=True, kw_only=True)
class HeadReading:
    """One head: where it is, what it does, and the figures that say so."""

    layer: int
    head: int
    role: Role
    figures: Figures | None
    """None for a text of one token."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    """One text as a model's heads see it."""

    tokens: tuple[str, ...]
    patterns: tuple[Pattern, ...]
    """One a layer, ``(H, T, T)``."""
    following: tuple[tuple[tuple[str, float], ...], ...]
    """For each token, what the model thinks comes next: the likeliest tokens, with probability."""
    heads: tuple[HeadReading, ...]
    """All heads, layer by layer."""
    even: Figures | None
    """What the figures are for a head that spreads evenly; None for a text of one token."""

    def pattern(self, head: HeadReading) -> Pattern:
        """The weights of one head, ``(T, T)``."""
        pattern: Pattern = self.patterns[head.layer][head.head]
        return pattern

    def at(self, layer: int, head: int) -> HeadReading:
        """One head, by its numbers.

        Raises:
            IndexError: there is no such head.
        """
        for candidate in self.heads:
            if (candidate.layer, candidate.head) == (layer, head):
                return candidate
        raise IndexError(f"there is no layer {layer} with a head {head}")

    def telling(self, count: int) -> list[HeadReading]:
        """So many heads that show most: the best of each role, then the second best, and so on."""
        ranked: list[tuple[int, int, HeadReading]] = []
        for order, role in enumerate(_TELLING):
            candidates = [head for head in self.heads if head.role is role]
            candidates.sort(key=_strength, reverse=True)
            ranked += [(place, order, head) for place, head in enumerate(candidates)]
        ranked.sort(key=lambda entry: entry[:2])
        return [head for _, _, head in ranked[:count]]


def read_heads(
    ids: Int[Tensor, " T"],
    patterns: Sequence[Pattern],
    logits: Float[Tensor, "T V"],
    *,
    name: Callable[[list[int]], list[str]],
) -> Reading:
    """Read every head of a causal model on one text.

    Args:
        ids: the text's tokens, at least one.
        patterns: causal self-attention on it, one ``(H, T, T)`` a layer.
        logits: what the model expects after each token.
        name: what ids stand for, such as a tokenizer's `tokens`.

    Raises:
        ValueError: the ids, patterns and logits do not belong to one text, or `logits` holds NaN.

    Example:
        >>> import regard, torch
        >>> x = torch.eye(5)[None] * 40  # every token finds itself
        >>> pattern = regard.Pattern(x, x, mask=regard.causal())
        >>> reading = read_heads(torch.arange(5), [pattern], torch.zeros(5, 9), name=lambda ids: [
        ...     "abcdefghi"[i] for i in ids])
        >>> [str(head.role) for head in reading.heads]
        ['itself']
    """
    length = len(ids)
    if ids.ndim != 1 or length == 0 or logits.shape[:-1] != (length,):
        raise ValueError(
            f"ids of shape {tuple(ids.shape)} and logits of shape {tuple(logits.shape)} are not "
            "(T,) and (T, V), of one text of at least one token"
        )
    if logits.isnan().any():
        raise ValueError(
            "logits holds NaN, so there is nothing to read: the model's weights are damaged or its "
            "training diverged; take another model"
        )
    for pattern in patterns:
        if pattern.ndim != 3 or pattern.shape[1:] != (length, length):
            raise ValueError(f"{pattern!r} is not (heads, {length}, {length}): one text's heads")
    blank = torch.zeros(1, length, 1, device=ids.device)
    (even,) = figures(Pattern(blank, blank, mask=causal()), ids)
    return Reading(
        tokens=tuple(name(ids.tolist())),
        patterns=tuple(patterns),
        following=_following(logits, name),
        heads=tuple(
            HeadReading(layer=layer, head=head, role=role_of(measured, even), figures=measured)
            for layer, pattern in enumerate(patterns)
            for head, measured in enumerate(figures(pattern, ids))
        ),
        even=even,
    )


def _following(
    logits: Float[Tensor, "T V"], name: Callable[[list[int]], list[str]]
) -> tuple[tuple[tuple[str, float], ...], ...]:
    top = logits.softmax(dim=-1).topk(min(_FOLLOWING, logits.shape[-1]), dim=-1)
    return tuple(
        tuple(zip(name(ids), probabilities, strict=True))
        for ids, probabilities in zip(top.indices.tolist(), top.values.tolist(), strict=True)
    )


def _strength(head: HeadReading) -> float:
    """How purely a head does what it is named for."""
    figures = head.figures
    if figures is None:
        return 0.0
    shares = {
        Role.INDUCTION: figures.induction,
        Role.SAME: figures.same,
        Role.PREVIOUS: figures.previous,
        Role.ITSELF: figures.itself,
        Role.FIRST: figures.first,
        Role.SPREAD: figures.spread,
    }
    return shares.get(head.role, 1 - figures.spread) or 0.0
