"""A problem as the kernels take it, and the sizes of their tiles.

Axes: B batch, H query heads, G key/value heads, N = B·H, L queries, S keys, D head dimension; b and
h are B or 1, H or 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard._shapes import Int
from regard._tensors import upload
from regard.inputs import Problem
from regard.masks.spans import Spans


class Tiles(NamedTuple):
    """How much a program works on at a time, and with how much of a processor."""

    queries: int
    keys: int
    width: int
    """D, rounded up to a power of two."""
    warps: int
    stages: int
    """Tiles of keys that are on their way from memory while one is worked on, and that one."""


def tiles_for(dim: int, dtype: torch.dtype, *, crowded: bool, roomy: bool) -> Tiles:
    """Choose sizes that fit the registers and the shared memory of a processor.

    Longer numbers and wider vectors leave room for fewer at a time. So do many readouts, whose
    running sums fill the registers: of smaller tiles a processor works on several in turn.

    Args:
        dim: D.
        dtype: of query and key.
        crowded: whether many readouts may be taken at once.
        roomy: whether processors have 160 KiB of shared memory, or else some 100.
    """
    width = max(16, power_of_two(dim))
    wide = width > 128
    if dtype == torch.float32:
        return Tiles(32 if wide else 64, 32, width, warps=4, stages=2 if roomy or not wide else 1)
    if not roomy:
        return Tiles(64, 32 if wide else 64, width, warps=4, stages=2)
    if crowded:
        return Tiles(64, 64, width, warps=4, stages=2 if wide else 3)
    return Tiles(128, 64, width, warps=8, stages=2 if wide else 3)


def is_roomy(device: torch.device) -> bool:
    """Whether a GPU is of those made for computing centres: A100, H100, B200 and their like."""
    if device.type != "cuda":
        return True
    major, minor = torch.cuda.get_device_capability(device)
    return (minor == 0 and major in {8, 9}) or major == 10


def power_of_two(size: int) -> int:
    """Round up to a power of two."""
    return 1 << (size - 1).bit_length()


class Inputs(NamedTuple):
    """A problem as the kernels read it."""

    query: Tensor
    key: Tensor
    start: Tensor
    stop: Tensor
    position: Tensor
    allowed: Tensor | None
    bias: Tensor | None
    alibi: Tensor | None
    span_start: Tensor | None
    span_stop: Tensor | None
    span_added: Tensor | None
    query_strides: tuple[int, ...]
    key_strides: tuple[int, ...]
    interval_strides: tuple[int, ...]
    allowed_strides: tuple[int, ...]
    bias_strides: tuple[int, ...]
    span_strides: tuple[int, ...]
    spans: int
    heads: int
    groups: int
    queries: int
    keys: int
    depth: int
    scale: float
    softcap: float | None


@dataclass(frozen=True, eq=False, kw_only=True)
class Launch:
    """A problem and the tiles that the kernels share it out in."""

    problem: Problem
    tiles: Tiles
    start: Int[Tensor, "b h L"]
    stop: Int[Tensor, "b h L"]
    position: Int[Tensor, "b h L"]

    @classmethod
    def of(cls, problem: Problem, columns: slice | None) -> Launch:
        """Lay a problem out, within some keys if they are given."""
        dim, dtype = problem.query.shape[-1], problem.query.dtype
        rows = problem.rows
        bounds = torch.broadcast_tensors(rows.start, rows.stop, rows.positions)
        start, stop, position = (t.to(torch.int32).contiguous() for t in bounds)
        if columns is not None:
            start, stop = start.clamp_min(columns.start), stop.clamp_max(columns.stop)
        return cls(
            problem=problem,
            tiles=tiles_for(dim, dtype, crowded=False, roomy=is_roomy(problem.query.device)),
            start=start,
            stop=stop,
            position=position,
        )

    def crowded(self) -> Launch:
        """Choose tiles for many readouts at once."""
        query = self.problem.query
        dim, roomy = query.shape[-1], is_roomy(query.device)
        return replace(self, tiles=tiles_for(dim, query.dtype, crowded=True, roomy=roomy))

    @property
    def heads(self) -> int:
        """N."""
        return self.problem.heads[0] * self.problem.heads[1]

    @property
    def query_blocks(self) -> int:
        """Into how many blocks the queries fall."""
        return -(-self.problem.queries // self.tiles.queries)

    @property
    def key_blocks(self) -> int:
        """Into how many blocks the keys fall."""
        return -(-self.problem.keys // self.tiles.keys)

    def arguments(self) -> dict[str, Any]:
        """Name the arguments that all kernels take."""
        tiles = self.tiles
        return {
            "inputs": self._inputs(),
            "QUERIES": tiles.queries,
            "KEYS": tiles.keys,
            "WIDTH": tiles.width,
            "num_warps": tiles.warps,
            "num_stages": tiles.stages,
        }

    def _inputs(self) -> Inputs:
        problem = self.problem
        query, key = _with_dense_rows(problem.query), _with_dense_rows(problem.key)
        allowed, bias = problem.rows.allowed, problem.rows.bias
        if bias is not None and bias.dtype == torch.float64:
            bias = bias.float()
        allowed = None if allowed is None else allowed.view(torch.uint8)
        span_start, span_stop, span_added = _span_tables(problem.rows.spans, query.device)
        return Inputs(
            query=query,
            key=key,
            start=self.start,
            stop=self.stop,
            position=self.position,
            allowed=allowed,
            bias=bias,
            alibi=self.per_head(problem.alibi),
            span_start=span_start,
            span_stop=span_stop,
            span_added=span_added,
            query_strides=query.stride()[:3],
            key_strides=key.stride()[:3],
            interval_strides=spread_strides(self.start),
            allowed_strides=spread_strides(allowed),
            bias_strides=spread_strides(bias),
            span_strides=spread_strides(span_start),
            spans=0 if span_start is None else len(span_start),
            heads=problem.heads[1],
            groups=problem.key.shape[1],
            queries=problem.queries,
            keys=problem.keys,
            depth=problem.query.shape[-1],
            scale=problem.scale,
            softcap=problem.softcap,
        )

    def per_head(self, numbers: Tensor | None) -> Tensor | None:
        """Write a number a head down for all N of them."""
        if numbers is None:
            return None
        return numbers.float().expand(self.problem.heads).contiguous()

    def spans(self) -> Int[Tensor, "4 b h blocks"]:
        """Work out which keys each block of queries sees.

        Returns:
            The first key that any of its queries sees, one past the last; the latest start,
            and the earliest stop. A block cut short by the end of the queries has an earliest stop
            of 0, as if there were queries that see nothing.
        """
        missing = self.query_blocks * self.tiles.queries - self.problem.queries
        start, stop = (
            pad(t, (0, missing)).unflatten(-1, (-1, self.tiles.queries))
            for t in (self.start, self.stop)
        )
        sees = start < stop
        first = torch.where(sees, start, self.problem.keys).amin(-1)
        return torch.stack(
            (first, torch.where(sees, stop, 0).amax(-1), start.amax(-1), stop.amin(-1))
        )


def spread_strides(tensor: Tensor | None) -> tuple[int, ...]:
    """Take a tensor's strides, 0 along axes of size 1, which spread."""
    if tensor is None:
        return (0, 0, 0, 0)
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return tuple(0 if size == 1 else stride for size, stride in pairs)


def _span_tables(spans: Spans | None, device: torch.device) -> tuple[Tensor | None, ...]:
    if spans is None:
        return None, None, None
    start, stop = (t.to(torch.int32).contiguous() for t in (spans.start, spans.stop))
    return start, stop, upload(spans.added.float(), device)


def _with_dense_rows(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
