"""The mean of the weights of several heads: a lazy pattern, whose rows sum to 1.

Axes: N flattened batch entries, L queries, S keys; a block has R rows, C columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from regard._shapes import Bool, Float
from regard.errors import Error
from regard.masks.rows import Rows
from regard.pattern._operator import Factor, LinearOperator
from regard.pattern.index import Index
from regard.pattern.internal_readouts import Weights
from regard.pattern.readout import Readout, Sizes, check_readout
from regard.pattern.readouts import MaxScore
from regard.pattern.stream import HIDDEN, LOWEST, WeightBlock

__all__ = ["MeanPattern"]

_BLOCK = 2**21  # weights in memory at a time: a GPU and several cores need many rows
_LIMIT = 2**30  # maximum bytes of `dense`, by default


class MeanPattern(Factor):
    """The mean of patterns of one shape, ``(..., L, S)``, computed when it is read.

    `Pattern.mean` makes it of the heads of a layer; it may also be of several layers. A readout
    that is linear in the weights is the mean of the heads' results; any other is taken of the
    averaged weights, block by block. It has no scores and no log-sum-exps: a mean of softmaxes is
    not the softmax of known scores.

    Args:
        patterns: at least one, all of the same shape, dtype and device. Each pass iterates over
            them at least once.

    Raises:
        TypeError: if one of them is a mean.
        ValueError: if there are none, or their shapes, dtypes or devices differ.

    Example:
        >>> import regard, torch
        >>> query, key = torch.randn(2, 4, 7, 5).unbind()
        >>> mean = regard.Pattern(query, key, mask=regard.causal()).mean()
        >>> mean.shape
        torch.Size([7, 7])
        >>> torch.testing.assert_close(mean[3].sum(), torch.tensor(1.0))
    """

    def __init__(self, patterns: Sequence[LinearOperator]) -> None:
        for number, pattern in enumerate(patterns):
            if isinstance(pattern, MeanPattern):
                raise TypeError(
                    f"patterns[{number}] is a mean itself; give the patterns that it averages, "
                    "its `patterns`"
                )
        kinds = {(tuple(one.shape), one.dtype, one.device) for one in patterns}
        if len(kinds) != 1:
            listed = ", ".join(sorted(map(repr, patterns))) or "none"
            raise ValueError(
                f"a mean needs patterns of one shape, dtype and device, but got {listed}"
            )
        self.patterns = patterns

    @property
    def shape(self) -> torch.Size:
        """``(..., L, S)``."""
        return self.patterns[0].shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        return self.patterns[0].dtype

    @property
    def device(self) -> torch.device:
        """Device of the results."""
        return self.patterns[0].device

    def __repr__(self) -> str:
        return f"MeanPattern({len(self.patterns)} of {self.patterns[0]!r})"

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Any:
        """Index it like a `Pattern`: a mean if only batch entries are indexed, else weights."""
        parts = (pattern[index] for pattern in self.patterns)
        first = next(parts)
        if not isinstance(first, torch.Tensor):
            return MeanPattern([first, *parts])
        return self._mean(lambda pattern: pattern[index])

    def __matmul__(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Compute the weighted averages of x, as `Pattern` does."""
        return self._mean(lambda pattern: pattern @ x)

    def __rmatmul__(self, y: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Compute linear combinations of the rows, as `Pattern` does."""
        return self._mean(lambda pattern: y @ pattern)

    def dense(self, *, limit: int | None = _LIMIT) -> Float[Tensor, "*b L S"]:
        """Materialize all weights; raise `ValueError` if they take more bytes than the limit."""
        return self._mean(lambda pattern: pattern.dense(limit=limit))

    def crop(
        self, queries: tuple[int, int] | None = None, keys: tuple[int, int] | None = None
    ) -> MeanPattern:
        """Restrict it to ranges of queries and keys, without renormalizing its rows."""
        return MeanPattern([pattern.crop(queries, keys) for pattern in self.patterns])

    def sees(self, query: int, key: int) -> bool:
        """Whether any of the heads lets a query see a key."""
        return any(pattern.sees(query, key) for pattern in self.patterns)

    def visible_keys(self) -> slice:
        """The smallest range that contains all keys that any head sees; may be empty."""
        spans = [pattern.visible_keys() for pattern in self.patterns]
        seen = [span for span in spans if span.start < span.stop] or [slice(0, 0)]
        return slice(min(span.start for span in seen), max(span.stop for span in seen))

    def read(self, *readouts: Readout[Any, Any]) -> tuple[Any, ...]:
        """Take several readouts of the mean; its results are in order.

        Raises:
            TypeError: for an argument that is not a readout.
            Error: for a readout of scores, since a mean has no scores.
            ValueError: for a readout that is grouped by key heads.
        """
        for readout in readouts:
            check_readout(readout)
            if isinstance(readout, MaxScore):
                _refuse_scores()
        linear = [readout for readout in readouts if readout.is_linear]
        others = [readout for readout in readouts if not readout.is_linear]
        means, streamed = iter(self._means(linear)), iter(self._streamed(others))
        return tuple(next(means if readout.is_linear else streamed) for readout in readouts)

    def _sizes(self) -> Sizes:
        *leading, queries, keys = self.shape
        return Sizes(tuple(leading), queries, keys, self.dtype, self.device)

    def _mean(self, take: Callable[[LinearOperator], Tensor]) -> Tensor:
        (mean,) = self._means_of(lambda pattern: (take(pattern),))
        return mean

    def _means(self, readouts: Sequence[Readout[Any, Any]]) -> list[Tensor]:
        if not readouts:
            return []
        return self._means_of(lambda pattern: pattern.read(*readouts))

    def _means_of(self, take: Callable[[LinearOperator], Sequence[Tensor]]) -> list[Tensor]:
        totals: list[Tensor] = []
        for pattern in self.patterns:
            parts = take(pattern)
            if not totals:
                totals = [torch.zeros_like(part, dtype=torch.float64) for part in parts]
            for total, part in zip(totals, parts, strict=True):
                total.add_(part)
        return [(total / len(self.patterns)).to(self.dtype) for total in totals]

    def _streamed(self, readouts: Sequence[Readout[Any, Any]]) -> Iterator[Any]:
        queries = self.shape[-2]
        apart = {i: readout.restricted(queries) for i, readout in enumerate(readouts)}
        together = [readout for i, readout in enumerate(readouts) if apart[i] is None]
        sizes = self._sizes()
        states = [readout.begin(sizes) for readout in together]
        for block in self._blocks() if together else ():
            for readout, state in zip(together, states, strict=True):
                readout.add(state, block)
        results = (r.finish(state, sizes) for r, state in zip(together, states, strict=True))
        for part in apart.values():
            if part is None:
                yield next(results)
            else:
                readout, index = part
                fewer = MeanPattern([pattern.at(index) for pattern in self.patterns])
                yield fewer.read(readout)[0]

    def _blocks(self) -> Iterator[WeightBlock]:
        """Average the weights a few rows at a time."""
        *leading, queries, keys = self.shape
        if 0 in self.shape:
            return
        height = max(1, _BLOCK // (torch.Size(leading).numel() * keys))
        for top in range(0, queries, height):
            rows = slice(top, min(top + height, queries))
            block = self._block(rows, self.crop((rows.start, rows.stop)).visible_keys())
            if block is not None:
                yield block

    def _block(self, rows: slice, columns: slice) -> WeightBlock | None:
        if columns.start >= columns.stop:
            return None
        part = self.crop((rows.start, rows.stop), (columns.start, columns.stop))
        height, width = part.shape[-2:]
        total = torch.zeros(part.shape, dtype=self.dtype, device=self.device)
        everything = Weights(torch.arange(width, device="cpu"), into=total)
        for pattern in part.patterns:
            pattern.read(everything)
        weights = total.div_(len(part.patterns)).reshape(-1, height, width)
        hidden = ~self._seen(rows, columns).reshape_as(weights)
        log_weights = weights.log().clamp_(min=LOWEST).masked_fill_(hidden, HIDDEN)
        own = part.patterns[0].problem.rows
        positions = own.spread(own.positions).reshape(-1, height) + columns.start
        return WeightBlock(
            heads=slice(0, len(weights)),
            rows=rows,
            columns=columns,
            weights=weights,
            log_weights=log_weights,
            logsumexp=torch.full_like(weights[..., 0], torch.nan),
            positions=positions,
            has_nan=bool(weights.isnan().any()),
            scaled=_refuse_scores,
        )

    def _seen(self, rows: slice, columns: slice) -> Bool[Tensor, "N 1 R C"]:
        """Compute which keys any head sees, from their distinct masks, often a single one."""
        masks: list[Rows] = []
        for pattern in self.patterns:
            own = pattern.problem.rows
            if not any(own.equals(mask) for mask in masks):
                masks.append(own)
        seen: Tensor | None = None
        for own in masks:
            visible = own.visible(rows, columns).expand(*own.heads, -1, -1)
            seen = visible if seen is None else seen | visible
        assert seen is not None, "there is a pattern at least"
        return seen


def _refuse_scores() -> Tensor:
    raise Error(
        "a mean of several heads' weights has no scores of its own; read those of the heads, "
        "pattern.read(MaxScore())"
    )
