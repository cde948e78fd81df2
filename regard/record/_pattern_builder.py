"""One pattern, built call by call where a model generates with a key/value cache.

The first call has the prompt's rows. A later one has a row for each new token, and keys of which
all but the newest were there before: all of them, or the last few of a rolling cache, perhaps
followed by room of a cache of fixed size. So a call continues a pattern if its keys are the
pattern's last ones; they are compared.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard._tensors import version
from regard.mask.bounds import AffineBounds, IndexBounds
from regard.mask.rows import Rows
from regard.mask.spans import Spans, join_spans
from regard.pattern import Pattern
from regard.problem import Problem
from regard.record._errors import RecordError
from regard.record._selection import Selection, select_heads

# Of the keys of a pattern that grows, an eighth is room, and no less than a few: a short one would
# else be copied at every step.
_SHARE, _ROOM = 8, 16


@dataclass(frozen=True, eq=False)
class _Piece:
    """The rows of one call."""

    query: Tensor
    rows: Rows
    shift: int
    """How many of the pattern's keys come before those that the call had."""
    width: int
    """How many keys the call had, without room that is not filled yet."""


class PatternBuilder:
    """Puts the calls of one pattern together."""

    def __init__(self, problem: Problem, selection: Selection, kind: str) -> None:
        self.heads = selection.head_numbers(problem.heads[1])
        self._rows: list[int] = []
        self._selection = selection
        self._kind = kind
        self._queries = 0
        self._pieces: list[_Piece] = []
        self._versions: list[tuple[Tensor, int]] = []
        self._pattern: Pattern | None = None
        problem = select_heads(problem, self.heads)
        self._keys = problem.keys if kind == "cross" else _filled(problem)
        self._key = selection.keep(problem.key[..., : self._keys, :])
        self._grown = False
        self._add(problem, shift=0, width=self._keys)
        self._problem = replace(problem, query=self._pieces[0].query, key=self._key)
        self._remember(self._key)

    @property
    def rows(self) -> Sequence[int]:
        """Numbers of the queries that are kept."""
        everything = range(self._queries)
        return everything if len(self._rows) == self._queries else tuple(self._rows)

    def extend(self, problem: Problem) -> bool:
        """Add another call, if it continues this pattern."""
        if not self._is_like(problem):
            return False
        problem = select_heads(problem, self.heads)
        past = _past(problem)
        if self._kind != "cross" and self._comes_after(problem, past):
            width = past + problem.queries
            self._grow(problem.key[..., past:width, :])
            self._add(problem, shift=self._keys - width, width=width)
            return True
        if problem.queries == 1 and problem.keys == self._keys and self._holds(problem):
            self._add(problem, shift=0, width=self._keys)  # cross-attention, whose keys stay
            return True
        return False

    def refuse(self, problem: Problem) -> None:
        """Refuse a call that goes on from a cache which is not the one recorded."""
        past = _past(problem)
        goes_on = past > 0 and (problem.queries == 1 or past == self._keys)
        if goes_on and self._kind != "cross":
            raise RecordError(
                f"a call has {past} keys from a cache, but they are not the {self._keys} recorded "
                "before it: the cache was reordered (beam search), cropped (assisted generation) "
                "or made outside the recording; record with num_beams=1, and from the prompt on"
            )

    def pattern(self) -> Pattern:
        """All rows as one pattern.

        Raises:
            RecordError: if the tensors it stands on were changed or freed.
        """
        for tensor, writes in self._versions:
            freed = tensor.numel() > 0 and tensor.untyped_storage().nbytes() == 0
            if freed or version(tensor) != writes:
                what = "freed" if freed else "written to"
                raise RecordError(
                    f"the model's tensors of shape {tuple(tensor.shape)} were {what} after they "
                    "were recorded, so their weights are lost; record with offload='cpu', which "
                    "copies them"
                )
        if self._pattern is None:
            self._pattern = Pattern.of(self._joined(), None)
        return self._pattern

    def _is_like(self, problem: Problem) -> bool:
        ours = self._problem
        return (
            ours.scale == problem.scale
            and ours.softcap == problem.softcap
            and ours.query.dtype == problem.query.dtype
            and ours.query.shape[0] == problem.query.shape[0]
            and ours.query.shape[-1] == problem.query.shape[-1]
            and max(self.heads, default=0) < problem.heads[1]
        )

    def _comes_after(self, problem: Problem, past: int) -> bool:
        width = past + problem.queries
        return (
            0 < past <= self._keys
            and width <= problem.keys
            and _last_seen(problem) <= width
            and self._holds(problem, past)
        )

    def _holds(self, problem: Problem, count: int | None = None) -> bool:
        """Tell whether a call's first keys, so many, are the last ones of this pattern."""
        count = problem.keys if count is None else count
        ours = self._key[..., self._keys - count : self._keys, :]
        return torch.equal(ours, problem.key[..., :count, :].to(ours.device))

    def _grow(self, new: Tensor) -> None:
        """Append keys to a buffer that grows by a share, so that a step costs what it adds."""
        count = new.shape[-2]
        if not self._grown or self._keys + count > self._key.shape[-2]:
            room = (self._keys + count) * _SHARE // (_SHARE - 1) + _ROOM
            shape = (*self._key.shape[:-2], room, self._key.shape[-1])
            buffer = self._key.new_empty(shape)
            buffer[..., : self._keys, :] = self._key[..., : self._keys, :]
            self._versions = [entry for entry in self._versions if entry[0] is not self._key]
            self._key, self._grown = buffer, True
        self._key[..., self._keys : self._keys + count, :] = new
        self._keys += count

    def _add(self, problem: Problem, *, shift: int, width: int) -> None:
        numbers = self._selection.row_numbers(self._queries, problem.queries)
        if len(numbers) < problem.queries:
            index = torch.tensor(numbers, dtype=torch.int64, device=problem.query.device)
            rows, query = problem.rows.take(index - self._queries), problem.query
            query = query[..., index - self._queries, :]
        else:
            rows, query = problem.rows, problem.query
        query = self._selection.keep(query)
        self._pieces.append(_Piece(query, _moved(rows, query.device), shift, width))
        for tensor in (query, rows.allowed, rows.bias):
            self._remember(tensor)
        self._rows += numbers
        self._queries += problem.queries
        self._pattern = None

    def _remember(self, tensor: Tensor | None) -> None:
        """Remember how often a tensor was written to, unless it is a copy that no one else has."""
        if tensor is not None and not tensor.is_inference():
            self._versions.append((tensor, version(tensor)))

    def _joined(self) -> Problem:
        query, rows = self._pieces[0].query, self._pieces[0].rows
        if len(self._pieces) > 1 or self._pieces[0].width != rows.keys:
            query = torch.cat([piece.query for piece in self._pieces], dim=-2)
            rows = _joined(self._pieces, self._keys)
        alibi, sink = self._problem.alibi, self._problem.sink
        return replace(
            self._problem,
            query=query,
            key=self._key[..., : self._keys, :],
            rows=rows,
            alibi=None if alibi is None else alibi.to(query.device),
            sink=None if sink is None else sink.to(query.device),
        )


def _past(problem: Problem) -> int:
    """How many keys come before the first query's own.

    Affine bounds give it without reading anything back from a GPU.
    """
    bounds = problem.rows.bounds
    if isinstance(bounds, AffineBounds):
        return bounds.position if problem.queries else 0
    first = problem.rows.positions[..., :1]
    return int(first.amin()) if first.numel() else 0


def _last_seen(problem: Problem) -> int:
    """One past the last key that any query may see."""
    bounds = problem.rows.bounds
    if isinstance(bounds, AffineBounds):
        return bounds.last_stop
    stop = problem.rows.stop
    return int(stop.amax()) if stop.numel() else 0


def _filled(problem: Problem) -> int:
    """How many keys a call has, without the room of a cache that is not filled yet."""
    width = _past(problem) + problem.queries
    room = problem.queries < problem.keys and _last_seen(problem) <= width
    return width if room and 0 < width < problem.keys else problem.keys


def _moved(rows: Rows, device: torch.device) -> Rows:
    return rows.to(lambda tensor: tensor.to(device), device)


def _joined(pieces: list[_Piece], keys: int) -> Rows:
    """Put rows below one another, each over all the keys."""
    tables = []
    for piece in pieces:
        table, shift = piece.rows, piece.shift
        start, stop = (bound.clamp(max=piece.width) for bound in (table.start, table.stop))
        tables.append([bound + shift for bound in (table.positions, start, stop)])
    groups = (tuple(group) for group in zip(*tables, strict=True))
    columns = ([bound.expand(*_common(group), -1) for bound in group] for group in groups)
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
    """The spans of a call, counted from the pattern's first key."""
    if piece.rows.spans is None:
        return None
    return piece.rows.spans.mapped(lambda table: table.clamp(max=piece.width) + piece.shift)


def _common(tensors: tuple[Tensor, ...]) -> tuple[int, int]:
    """The batch and heads that tensors (b, h, ...) broadcast to."""
    shape = torch.broadcast_shapes(*(t.shape[:2] for t in tensors))
    return shape[0], shape[1]


def _written_out(
    matrices: list[Tensor | None], pieces: list[_Piece], keys: int, *, filler: bool | float
) -> Tensor | None:
    """Put the dense parts of the rows below one another; what the bounds hide may be anything."""
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
