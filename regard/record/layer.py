"""One layer of a recording, and the names of its positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from torch import Tensor

from regard._shapes import Float
from regard.pattern import Pattern
from regard.record.names import Kind

Tokens = tuple[tuple[str, ...], ...]


class CallPattern(NamedTuple):
    """The rows of one call, and only the keys that it had."""

    pattern: Pattern
    shift: int
    """How many of the layer's keys come before them."""


class CallSize(NamedTuple):
    """Which part of a layer's pattern a call is, after those before it."""

    queries: int
    keys: int
    shift: int
    """How many of the layer's keys come before them."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Layer:
    """One attention layer of a run.

    Example:
        >>> import regard, torch
        >>> from regard.nn import MultiHeadAttention
        >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
        >>> with regard.record(layer) as recording:
        ...     _ = layer(torch.randn(1, 5, 6))
        >>> layer = recording.layers[0]
        >>> layer.kind, layer.index, layer.heads, layer.pattern.shape
        ('self', 0, (0, 1), torch.Size([1, 2, 5, 5]))
    """

    name: str
    """Path of the module that attends, such as ``transformer.h.0.attn``."""
    kind: Kind
    """``self``, ``cross`` (of a decoder to its source) or ``encoder``."""
    index: int
    """Its number among the model's layers of this kind."""
    heads: tuple[int, ...]
    """Numbers of the query heads that were kept."""
    rows: Sequence[int]
    """Numbers of the queries that were kept."""
    mean_context: Float[Tensor, "H Dv"] | None = None
    """Of each head, over the rows that see a key; with ``record(..., mean_contexts=True)``."""
    get_pattern: Callable[[], Pattern]
    """Makes the pattern, if its tensors are still there."""
    get_calls: Callable[[], Sequence[CallPattern]] | None = None
    """Makes those of the calls that it is built of; None where they are not known apart."""

    @property
    def pattern(self) -> Pattern:
        """The layer's weights.

        Raises:
            RecordError: if the tensors it stands on were changed or freed.
        """
        return self.get_pattern()

    @property
    def calls(self) -> Sequence[CallPattern]:
        """The pattern call by call, such as the steps of a generation.

        Raises:
            RecordError: as for `pattern`.
        """
        if self.get_calls is None:
            return (CallPattern(self.pattern, 0),)
        return self.get_calls()

    @property
    def call_sizes(self) -> list[CallSize]:
        """Which parts of the pattern its calls are.

        Raises:
            RecordError: as for `pattern`.
        """
        problems = ((call.pattern.problem, call.shift) for call in self.calls)
        return [CallSize(problem.queries, problem.keys, shift) for problem, shift in problems]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the pattern in place of what makes it, which holds the tensors of the run."""
        names = {field.name for field in fields(self)} - {"get_pattern", "get_calls"}
        return _restored, (
            {name: getattr(self, name) for name in names},
            self.pattern,
            None if self.get_calls is None else self.call_sizes,
        )


def _restored(stated: dict[str, Any], pattern: Pattern, sizes: list[CallSize] | None) -> Layer:
    calls = None if sizes is None else parts_of(pattern, sizes)
    return Layer(**stated, get_pattern=lambda: pattern, get_calls=calls)


def parts_of(pattern: Pattern, sizes: Sequence[CallSize]) -> Callable[[], list[CallPattern]]:
    """Make what cuts a layer's pattern into its calls.

    Raises:
        ValueError: for sizes that are not those of parts of the pattern.
    """
    first, ranges = 0, []
    for queries, keys, shift in sizes:
        rows, columns = slice(first, first + queries), slice(shift, shift + keys)
        if not (first <= rows.stop and 0 <= columns.start <= columns.stop <= pattern.problem.keys):
            raise ValueError(f"a call of queries {rows} and keys {columns}")
        ranges.append((rows, columns))
        first = rows.stop
    if first != pattern.problem.queries:
        raise ValueError(f"calls of {first} queries, but there are {pattern.problem.queries}")
    return lambda: [
        CallPattern(Pattern.of(pattern.problem.crop(rows, columns), None), columns.start)
        for rows, columns in ranges
    ]


def self_attention(pattern: Pattern, index: int) -> Layer:
    """Make the layer of that number, of all heads, from its pattern ``(H, T, T)``."""
    heads, queries, _ = pattern.shape
    return Layer(
        name=f"h.{index}.attn",
        kind="self",
        index=index,
        heads=tuple(range(heads)),
        rows=range(queries),
        get_pattern=lambda: pattern,
    )


@dataclass(frozen=True)
class Labels:
    """Names of the positions."""

    target: Tokens | None
    source: Tokens | None = None
