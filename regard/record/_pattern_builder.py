"""Builds one pattern from its calls, whose queries and keys are kept.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard._shapes import Float
from regard._tensors import version
from regard.inputs import Problem
from regard.masks.bounds import IndexBounds
from regard.masks.rows import Rows
from regard.masks.spans import Spans, join_spans
from regard.pattern import Pattern
from regard.record._kept import KeptValues
from regard.record._layer_builder import LayerBuilder, LayerCall
from regard.record._selection import Selection, require_as_seen
from regard.record.layer import CallPattern
from regard.record.sites import AttentionKind

# A growing key buffer has an eighth of spare capacity, and at least 16 entries, so that appending
# takes amortized constant time.
_SHARE, _ROOM = 8, 16


@dataclass(frozen=True, eq=False)
class _Piece:
    """The rows of one call."""

    query: Tensor
    rows: Rows
    shift: int
    """Index of the call's first key in the pattern."""
    width: int
    """Number of keys of the call, without unused cache entries."""


class PatternBuilder(LayerBuilder):
    """Concatenates the calls of one pattern."""

    def __init__(self, call: LayerCall, kind: AttentionKind, *, selection: Selection) -> None:
        self._pieces: list[_Piece] = []
        self._versions: list[tuple[Tensor, int]] = []
        self._pattern: Pattern | None = None
        self._grown = False
        super().__init__(call, kind, selection=selection)
        self._kept = KeptValues(call.path, selection, self.heads)
        self._keep_values(call)

    def extend(self, call: LayerCall) -> bool:
        """Add a call if it continues this pattern, and what is kept of its new values.

        Raises:
            RecordError: as for every builder, and if nothing can be kept of its values.
        """
        continued = super().extend(call)
        if continued:
            self._keep_values(call)
        return continued

    def kept(self) -> dict[str, Tensor]:
        """Return what is kept of the values, by name, with the pattern's leading dimensions."""
        return self._kept.joined(self._leading)

    def _keep_values(self, call: LayerCall) -> None:
        if self._selection.keep_of_values and self.new_keys.stop > self.new_keys.start:
            value = None if call.value is None else call.value[..., self.new_keys, :]
            self._kept.add(value, call.problem.heads[1])

    def pattern(self) -> Pattern:
        """Return all rows as one pattern.

        Raises:
            RecordError: if its tensors were changed or freed.
        """
        self._require_unchanged()
        if self._pattern is None:
            self._pattern = Pattern.of(self._joined(), None)
        return self._pattern

    def calls(self) -> list[CallPattern]:
        """Return the rows of each call as a separate pattern.

        Raises:
            RecordError: as for `pattern`.
        """
        if len(self._pieces) == 1:
            return [CallPattern(self.pattern(), 0)]
        self._require_unchanged()
        return [CallPattern(Pattern.of(self._of_call(p), None), p.shift) for p in self._pieces]

    def _require_unchanged(self) -> None:
        for tensor, writes in self._versions:
            require_as_seen(tensor, writes)

    def _begin(self, key: Float[Tensor, "B G S D"]) -> None:
        self._key = self._selection.keep(key)
        self._remember(self._key)

    def _begins_with(self, key: Float[Tensor, "B G s D"]) -> bool:
        ours = self._key[..., : key.shape[-2], :]
        return torch.equal(ours, key.to(ours.device))

    def _ends_with(self, key: Float[Tensor, "B G s D"]) -> bool:
        ours = self._key[..., self._keys - key.shape[-2] : self._keys, :]
        return torch.equal(ours, key.to(ours.device))

    def _append(self, key: Float[Tensor, "B G s D"]) -> None:
        """Append keys to a buffer that grows geometrically."""
        count = key.shape[-2]
        if not self._grown or self._keys + count > self._key.shape[-2]:
            room = (self._keys + count) * _SHARE // (_SHARE - 1) + _ROOM
            shape = (*self._key.shape[:-2], room, self._key.shape[-1])
            buffer = self._key.new_empty(shape)
            buffer[..., : self._keys, :] = self._key[..., : self._keys, :]
            self._versions = [entry for entry in self._versions if entry[0] is not self._key]
            self._key, self._grown = buffer, True
        self._key[..., self._keys : self._keys + count, :] = key

    def _take(self, problem: Problem, shift: int, width: int) -> None:
        rows, query = problem.rows, self._selection.keep(problem.query)
        if not self._pieces:
            self._problem = replace(problem, query=query, key=self._key)
            self._leading = problem.leading
        if self._selection.offload:
            rows = rows.to(lambda tensor: tensor.to("cpu", copy=True), query.device)
        self._pieces.append(_Piece(query, rows, shift, width))
        for tensor in (query, rows.allowed, rows.bias):
            self._remember(tensor)
        self._pattern = None

    def _remember(self, tensor: Tensor | None) -> None:
        """Store a tensor's version counter, to detect later writes."""
        if tensor is not None and not tensor.is_inference():
            self._versions.append((tensor, version(tensor)))

    def _joined(self) -> Problem:
        query, rows = self._pieces[0].query, self._pieces[0].rows
        if len(self._pieces) > 1 or self._pieces[0].width != rows.keys:
            query = torch.cat([piece.query for piece in self._pieces], dim=-2)
            rows = _joined(self._pieces, self._keys)
        return self._with(query, self._key[..., : self._keys, :], rows)

    def _of_call(self, piece: _Piece) -> Problem:
        rows = piece.rows.crop(slice(0, piece.rows.queries), slice(0, piece.width))
        return self._with(
            piece.query, self._key[..., piece.shift :, :][..., : piece.width, :], rows
        )

    def _with(self, query: Tensor, key: Tensor, rows: Rows) -> Problem:
        alibi, sink = self._problem.alibi, self._problem.sink
        return replace(
            self._problem,
            query=query,
            key=key,
            rows=rows,
            alibi=None if alibi is None else alibi.to(query.device),
            sink=None if sink is None else sink.to(query.device),
        )


def _joined(pieces: list[_Piece], keys: int) -> Rows:
    """Concatenate rows, each extended to all keys."""
    tables = []
    for piece in pieces:
        table, shift = piece.rows, piece.shift
        start, stop = (bound.clamp(max=piece.width) for bound in (table.start, table.stop))
        tables.append([bound + shift for bound in (table.positions, start, stop)])
    groups = (tuple(group) for group in zip(*tables, strict=True))
    columns = (_spread(group) for group in groups)
    return replace(
        pieces[0].rows,
        keys=keys,
        bounds=IndexBounds(*(torch.cat(column, dim=-1) for column in columns)),
        allowed=_written_out([piece.rows.allowed for piece in pieces], pieces, keys, filler=True),
        bias=_written_out([piece.rows.bias for piece in pieces], pieces, keys, filler=0.0),
        spans=join_spans(
            [_shifted(piece) for piece in pieces], [piece.rows.queries for piece in pieces]
        ),
    )


def _shifted(piece: _Piece) -> Spans | None:
    """Shift the spans of a call to the pattern's key indices."""
    if piece.rows.spans is None:
        return None
    return piece.rows.spans.mapped(lambda table: table.clamp(max=piece.width) + piece.shift)


def _spread(bounds: tuple[Tensor, ...]) -> list[Tensor]:
    """Expand tensors (b, h, L) to a common batch and number of heads."""
    lead = _common(bounds)
    return [bound.expand(*lead, -1) for bound in bounds]


def _common(tensors: tuple[Tensor, ...]) -> tuple[int, int]:
    """Return the batch and heads to which tensors (b, h, ...) broadcast."""
    batch, heads = zip(*(tensor.shape[:2] for tensor in tensors), strict=True)
    return _size(batch), _size(heads)


def _size(sizes: tuple[int, ...]) -> int:
    return next((size for size in sizes if size != 1), 1)


def _written_out(
    matrices: list[Tensor | None], pieces: list[_Piece], keys: int, *, filler: bool | float
) -> Tensor | None:
    """Concatenate the dense parts of the rows; entries outside the bounds are arbitrary."""
    present = [matrix for matrix in matrices if matrix is not None]
    if not present:
        return None
    lead = _common(tuple(present))
    blocks = []
    for matrix, piece in zip(matrices, pieces, strict=True):
        block = present[0].new_full((*lead, piece.rows.queries, keys), filler)
        if matrix is not None:
            block[..., piece.shift : piece.shift + piece.width] = matrix[..., : piece.width]
        blocks.append(block)
    return torch.cat(blocks, dim=-2)
