"""Spans of keys to hide, the queries that they are hidden from, and the table of the effects.

Axes: K sets of spans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from regard._shapes import Float
from regard.lens.effect.runs import Unchanged
from regard.lens.effect.table import Effects, Method, Place
from regard.lens.spans.links import Span
from regard.lens.spans.passages import Passage, check_spans
from regard.lens.targets import Answer, Logit, LogProbability, Target
from regard.record.layer import Layer

From = Literal["later", "question", "answer"]

_BLOCKS = 64  # maximum number of blocks of keys that a text is divided into


@dataclass(frozen=True, kw_only=True)
class Hidden:
    """Spans to hide, and the first query that each is hidden from."""

    spans: tuple[Passage, ...]
    starts: tuple[int, ...]
    queries: Span | None
    """The queries that all spans are hidden from, if they are the same for all."""
    length: int
    of_choice: bool
    """True if the caller gave the spans."""

    @property
    def start(self) -> int:
        """Return the first query that any span is hidden from."""
        return min(self.starts)

    @property
    def numbered(self) -> dict[Span, int]:
        """Return the index of each span, by its start and stop."""
        return {span.tokens: number for number, span in enumerate(self.spans)}

    @property
    def present(self) -> list[int]:
        """Return the indices of the spans that are hidden from some query of the text."""
        return [number for number, start in enumerate(self.starts) if start < self.length]

    @property
    def together(self) -> bool:
        """Return True if all spans are also hidden together."""
        return self.of_choice and bool(self.present)

    @property
    def groups(self) -> list[list[int]]:
        """Return the indices of the spans that are hidden together: each alone, then all."""
        return [[number] for number in self.present] + [self.present] * self.together


def hidden_spans(over: Any, hidden_from: From, target: Target, length: int) -> Hidden:
    """Check the spans, and find the queries that they are hidden from.

    Raises:
        TypeError: for spans of the wrong type.
        ValueError: for spans that reach too far, and for a target without positions.
    """
    queries = None
    if hidden_from != "later":
        if not isinstance(target, (LogProbability, Logit, Answer)):
            raise ValueError(
                f"hidden_from={hidden_from!r} needs a target that is predicted at known positions: "
                "a regard.lens.LogProbability, Logit or Answer"
            )
        queries = target.queries(length)
    if over == "keys":
        size = -(-length // _BLOCKS)
        blocks = range(0, length, size)
        spans = tuple(Passage(tokens=(first, min(first + size, length))) for first in blocks)
    else:
        spans = check_spans(over, length if queries is None else queries[0] + 1, "over")
    stops = tuple(span.tokens[1] for span in spans)
    if queries is not None:
        first = queries[0] if hidden_from == "answer" else min(max(stops), queries[0])
        queries = first, queries[1]
    return Hidden(
        spans=spans,
        starts=stops if queries is None else (queries[0],) * len(spans),
        queries=queries,
        length=length,
        of_choice=over != "keys",
    )


def name_of(span: Passage, tokens: tuple[str, ...] | None) -> str:
    """Name a span by its positions and its text or tokens."""
    if span.text or tokens is None:
        return str(span)
    return f"{span} {''.join(tokens[slice(*span.tokens)])}"


def length_of(layers: Sequence[Layer]) -> int:
    """Return the number of keys of the layers.

    Raises:
        ValueError: if they differ from layer to layer.
    """
    sizes = sorted({layer.pattern.shape[-1] for layer in layers})
    if len(sizes) != 1:
        raise ValueError(
            f"effects over keys need layers over the same keys, but they have {sizes}; name "
            "those of the text in layers, or take over='heads'"
        )
    return sizes[0]


def spans_table(
    target: str,
    unchanged: Unchanged,
    hidden: Hidden,
    changed: Float[Tensor, " K"],
    method: Method,
    measure: Callable[[Sequence[Place]], Tensor] | None = None,
) -> Effects:
    """Return the table of the effects of hiding each of `Hidden.groups`."""
    values = torch.zeros(len(hidden.spans), dtype=torch.float64, device="cpu")
    values[hidden.present] = changed[: len(hidden.present)]
    without_all = float(changed[-1]) if hidden.together else 0.0
    return Effects(
        values=values,
        unchanged=unchanged.number,
        target=target,
        over="spans" if hidden.of_choice else "keys",
        method=method,
        axes=("span" if hidden.of_choice else "keys",),
        labels=(tuple(name_of(span, unchanged.tokens) for span in hidden.spans),),
        places=tuple(span.tokens for span in hidden.spans),
        without_all=without_all if hidden.of_choice else None,
        hidden_from=hidden.queries,
        _ablate=measure,
    )
