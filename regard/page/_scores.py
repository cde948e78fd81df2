"""What a head does, as an answer."""

from __future__ import annotations

from dataclasses import replace
from threading import Event
from typing import Any

from regard.lens.naming.head_scores import score_heads
from regard.lens.naming.heads import SCORES
from regard.page._bands import cancellable_reader
from regard.pattern import Pattern
from regard.record import Layer

__all__ = ["scores_of"]


def scores_of(
    pattern: Pattern, layer: Layer, head: int, tokens: tuple[str, ...], cancelled: Event | None
) -> dict[str, Any]:
    """Score a head, the one at that place in its layer, by its pattern ``(L, S)``."""
    own = Pattern.of(replace(pattern.problem, leading=(1,)), pattern.logsumexp)
    part = Layer(
        name=layer.name,
        kind=layer.kind,
        index=layer.index,
        heads=(layer.heads[head],),
        rows=layer.rows,
        get_pattern=lambda: own,
    )
    (scores,) = score_heads([part], (tokens,), progress=False, read=cancellable_reader(cancelled))
    return {
        "head": head,
        "role": scores.role,
        "meaning": scores.role.meaning,
        "evidence": scores.evidence,
        "score": scores.score,
        "margin": scores.margin,
        "queries": scores.queries,
        "undecided": scores.undecided,
        **{name: getattr(scores, name) for name in SCORES},
    }
