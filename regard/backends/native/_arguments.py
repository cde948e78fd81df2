"""A problem for the native library: flat arguments, and the struct that they are packed in.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension of query and
key, Dv of value, N spans; b is B or 1, and h, l and s likewise.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard._contexts import in_memory
from regard._shapes import Bool, Float, Int
from regard.backends.native._structs import PROBLEM, pack_integer_into
from regard.inputs import Problem
from regard.masks.bounds import AffineBounds

CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
DTYPES = tuple(CODES)

_THREADS, _QUERY, _KEY, _VALUE = map(
    PROBLEM.offset, ("threads", "query.data", "key.data", "value.data")
)
_NONE = (0, 0, 0, 0, 0)
# Bounds are clamped to this magnitude, so that adding an index to one does not overflow.
_FAR = 2**48


class Arguments(NamedTuple):
    """The arguments of the operators in `_operators`, in their order."""

    query: Float[Tensor, "B H L D"]
    key: Float[Tensor, "B G S D"]
    value: Float[Tensor, "B G S Dv"]
    start: Int[Tensor, "#b #h L"] | None
    stop: Int[Tensor, "#b #h L"] | None
    positions: Int[Tensor, "#b #h L"] | None
    affine: list[int]
    """Instead of these three tables: start, its step, stop, its step, position."""
    span_start: Int[Tensor, "#b #h N L"] | None
    """The spans of `Rows.spans`, but with the batch axis first."""
    span_stop: Int[Tensor, "#b #h N L"] | None
    span_added: Float[Tensor, "1 N"] | None
    scale: float
    softcap: float
    """0 for none."""
    allowed: Bool[Tensor, "#b #h #l #s"] | None
    bias: Float[Tensor, "#b #h #l #s"] | None
    alibi: Float[Tensor, "#b #h"] | None
    sink: Float[Tensor, "#b #h"] | None
    dropout: float
    seed: Int[Tensor, "2"] | None
    """The low word and the high one; None without dropout."""

    @classmethod
    def of(cls, problem: Problem) -> Arguments:
        """Flatten a problem."""
        bounds, spans = problem.rows.bounds, problem.rows.spans
        affine = bounds if isinstance(bounds, AffineBounds) else None
        value = problem.key[..., :0] if problem.value is None else problem.value
        own = problem.value is not None and value.shape[1] != problem.key.shape[1]
        return cls(
            query=problem.query,
            key=problem.repeated(problem.key) if own else problem.key,
            value=value,
            start=bounds.start if affine is None else None,
            stop=bounds.stop if affine is None else None,
            positions=bounds.positions if affine is None else None,
            affine=[] if affine is None else _affine_numbers(affine),
            span_start=None if spans is None else spans.start.movedim(0, 2),
            span_stop=None if spans is None else spans.stop.movedim(0, 2),
            span_added=None if spans is None else spans.added[None],
            scale=problem.scale,
            softcap=problem.softcap or 0.0,
            allowed=problem.rows.allowed,
            bias=problem.rows.bias,
            alibi=problem.alibi,
            sink=problem.sink,
            dropout=problem.dropout,
            seed=problem.seed,
        )

    def pack(self) -> Packed:
        """Pack the arguments; tensors are copied unless their last axis is contiguous."""
        kept: list[Tensor] = []
        batch, heads, queries, dim = self.query.shape
        numbers = PROBLEM.pack(
            CODES[self.query.dtype],
            torch.get_num_threads(),
            *(batch, heads, self.key.shape[1], queries, self.key.shape[2], dim),
            self.value.shape[-1],
            *(self.scale, self.softcap, self.dropout, _signed(self.seed)),
            *_placed(_contiguous_rows(self.query), 3, kept),
            *_placed(_contiguous_rows(self.key), 3, kept),
            *_placed(_contiguous_rows(self.value), 3, kept),
            *self._rows(kept),
            *self._spans(kept),
            *_placed(self.allowed, 4, kept),
            *_placed(self.bias, 4, kept, torch.float32),
            *_placed(self.alibi, 2, kept, torch.float32),
            *_placed(self.sink, 2, kept, torch.float32),
        )
        return Packed(numbers, kept)

    def _rows(self, kept: list[Tensor]) -> tuple[int, ...]:
        if self.start is None or self.stop is None or self.positions is None:
            return (*_NONE, *(max(-_FAR, min(_FAR, number)) for number in self.affine))
        tables = _tables(self.start, self.stop, self.positions)
        kept.extend(tables)
        return (*(t.data_ptr() for t in tables), *_strides(tables[0], 2), *_NONE)

    def _spans(self, kept: list[Tensor]) -> tuple[int, ...]:
        """Return the fields of ``regard_spans``."""
        if self.span_start is None or self.span_stop is None or self.span_added is None:
            return (0,) * 7
        tables = _tables(self.span_start, self.span_stop)
        added = in_memory(self.span_added.float()).contiguous()
        kept.extend((*tables, added))
        batch, head, span = _strides(tables[0], 3)
        pointers = (t.data_ptr() for t in (*tables, added))
        return (*pointers, added.numel(), span, batch, head)


class Packed(NamedTuple):
    """The struct, and the tensors that must stay alive as long as it is used."""

    numbers: bytes
    kept: list[Tensor]


def repointed(packed: bytes, query: int, key: int, value: int) -> bytes:
    """Replace the pointers of three tensors in a problem, and the number of threads by torch's."""
    numbers = bytearray(packed)
    pack_integer_into(numbers, _THREADS, torch.get_num_threads())
    pack_integer_into(numbers, _QUERY, query)
    pack_integer_into(numbers, _KEY, key)
    pack_integer_into(numbers, _VALUE, value)
    return bytes(numbers)


def _tables(*tables: Int[Tensor, "... L"]) -> tuple[Int[Tensor, "... L"], ...]:
    """Convert tables to int64 with equal strides and a contiguous last axis."""
    tables = tuple(in_memory(t.long()) for t in torch.broadcast_tensors(*tables))
    if tables[0].stride(-1) != 1 or len({t.stride() for t in tables}) > 1:
        tables = tuple(t.contiguous() for t in tables)
    return tables


def _signed(seed: Int[Tensor, "2"] | None) -> int:
    """Return a seed as a signed 64-bit integer."""
    if seed is None:
        return 0
    low, high = seed.tolist()
    number: int = low | high << 32
    return number - 2**64 if number >= 2**63 else number


def _affine_numbers(bounds: AffineBounds) -> list[int]:
    """Return affine bounds as start, its step, stop, its step, position."""
    return [
        *((0, 0) if bounds.first_start is None else (bounds.first_start, 1)),
        *((bounds.keys, 0) if bounds.first_stop is None else (bounds.first_stop, 1)),
        bounds.position,
    ]


def pointers(*tensors: Tensor | None) -> list[int]:
    """Return the addresses of tensors; 0 for None."""
    return [0 if tensor is None else tensor.data_ptr() for tensor in tensors]


def vectors(tensor: Float[Tensor, "B heads n d"]) -> tuple[int, ...]:
    """Return the fields of ``regard_tensor`` for a tensor whose last axis is contiguous."""
    return tensor.data_ptr(), *_strides(tensor, 3)


def _contiguous_rows(tensor: Tensor) -> Tensor:
    """Return a tensor whose last axis is contiguous; a copy if necessary."""
    tensor = in_memory(tensor)
    return tensor.contiguous() if tensor.stride(-1) != 1 and tensor.shape[-1] > 1 else tensor


def _placed(
    tensor: Tensor | None, axes: int, kept: list[Tensor], dtype: torch.dtype | None = None
) -> tuple[int, ...]:
    """Return the address of a tensor, converted to a dtype, and its first strides; 0 for None."""
    if tensor is None:
        return (0,) * (1 + axes)
    kept.append(in_memory(tensor if dtype is None else tensor.to(dtype)))
    return kept[-1].data_ptr(), *_strides(kept[-1], axes)


def _strides(tensor: Tensor, axes: int) -> tuple[int, ...]:
    """Return the strides of the first axes; 0 for an axis of size 1, which may be broadcast."""
    shape, strides = tensor.shape[:axes], tensor.stride()[:axes]
    if min(shape) > 1:  # the common case, as this runs several times per call
        return strides
    return tuple(stride if size > 1 else 0 for size, stride in zip(shape, strides, strict=True))
