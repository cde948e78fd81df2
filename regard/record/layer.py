"""One layer of a recording: its pattern, what is known of it, and the tokens at its positions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from torch import Tensor

from regard._shapes import Shaped
from regard.errors import RecordError
from regard.pattern import Pattern
from regard.record.sites import AttentionKind

Tokens = tuple[tuple[str, ...], ...]


class CallPattern(NamedTuple):
    """The rows of one call over the keys of that call only."""

    pattern: Pattern
    shift: int
    """Index of the call's first key among the layer's keys."""


class CallSize(NamedTuple):
    """Size of one call, and the offset of its keys."""

    queries: int
    keys: int
    shift: int
    """Index of the call's first key among the layer's keys."""


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
    """Path of the attention module, such as ``transformer.h.0.attn``."""
    kind: AttentionKind
    """``self``, ``cross`` (from a decoder to its source) or ``encoder``."""
    index: int
    """Index among the model's layers of this kind."""
    heads: tuple[int, ...]
    """Indices of the query heads that were kept."""
    rows: Sequence[int]
    """Indices of the queries that were kept."""
    kept: Mapping[str, Shaped[Tensor, "*b S ..."]] = field(default_factory=dict)
    """What the functions of `record(keep=...)` kept of the values, by name: numbers ``(B, H, S)``
    or vectors ``(B, H, S, n)``, with the pattern's leading dimensions, or G heads for H."""
    get_pattern: Callable[[], Pattern]
    """Returns the pattern, or raises if its tensors were changed or freed."""
    get_calls: Callable[[], Sequence[CallPattern]] | None = None
    """Returns the patterns of the separate calls; None if the calls are not known."""

    @property
    def pattern(self) -> Pattern:
        """The attention weights of the layer.

        Raises:
            RecordError: if its tensors were changed or freed.
        """
        return self.get_pattern()

    @property
    def calls(self) -> Sequence[CallPattern]:
        """The pattern split into calls, such as the steps of a generation.

        Raises:
            RecordError: as for `pattern`.
        """
        if self.get_calls is None:
            return (CallPattern(self.pattern, 0),)
        return self.get_calls()

    @property
    def call_sizes(self) -> list[CallSize]:
        """The sizes of the calls.

        Raises:
            RecordError: as for `pattern`.
        """
        problems = ((call.pattern.problem, call.shift) for call in self.calls)
        return [CallSize(problem.queries, problem.keys, shift) for problem, shift in problems]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the pattern rather than the callable, which refers to the tensors of the run."""
        names = {one.name for one in fields(self)} - {"get_pattern", "get_calls"}
        return _restored, (
            {name: getattr(self, name) for name in names},
            self.pattern,
            None if self.get_calls is None else self.call_sizes,
        )


def _restored(stated: dict[str, Any], pattern: Pattern, sizes: list[CallSize] | None) -> Layer:
    calls = None if sizes is None else split_into_calls(pattern, sizes)
    return Layer(**stated, get_pattern=lambda: pattern, get_calls=calls)


def split_into_calls(
    pattern: Pattern, sizes: Sequence[CallSize]
) -> Callable[[], list[CallPattern]]:
    """Return a function that splits a layer's pattern into its calls.

    Raises:
        ValueError: if the sizes do not partition the pattern.
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
    """Make a layer of self-attention from a pattern ``(H, T, T)`` of all its heads."""
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
    """The tokens at the positions, of self-attention and of the source."""

    target: Tokens | None
    source: Tokens | None = None


def require_one_run(layers: Sequence[Layer], what: str) -> Sequence[Layer]:
    """Return the layers, or raise if one of them occurs twice, as in a recording of two runs.

    Args:
        layers: layers of one kind.
        what: the function that needs a single run, such as ``"rollout"``.

    Raises:
        RecordError: if a layer was recorded in several runs.
    """
    times = Counter(layer.index for layer in layers)
    for layer in layers:
        if times[layer.index] > 1:
            name = layer.name or f"layer {layer.index}"
            raise RecordError(
                f"{what} needs the layers of one run, but "
                f"{describe_repeats(name, times[layer.index])}; record one run at a time"
            )
    return layers


def describe_repeats(name: str, times: int) -> str:
    """Return a clause saying that a layer has several patterns."""
    return f"{name!r} attended {times} times in this recording"
