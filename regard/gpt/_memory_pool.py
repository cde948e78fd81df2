"""A memory pool for the updates of a training run.

The tensors saved for a backward pass exceed what the C library keeps: it returns the memory to the
system, which zeroes each page when the next update touches it. That took a sixth of an update. A
pool keeps the memory, in huge pages if the system has them.
"""

from __future__ import annotations

import ctypes
import functools
from bisect import insort
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from math import prod
from threading import Lock
from typing import Self

import torch
from torch import Tensor

from regard import _huge_pages

TensorSpec = tuple[tuple[int, ...], torch.dtype]
"""Shape, with at least one element, and dtype of a tensor."""

_ALIGNMENT = 64  # bytes, a line of the processor's caches
_MIN_REGION_BYTES = 2**25  # minimum bytes of a region; pages that are never written take no memory
_MAX_LAYOUTS = 256


class MemoryPool:
    """A pool of CPU memory for tensors: a block is reused when all its tensors are freed.

    All memory is freed when the pool and its tensors are gone.
    """

    def __init__(self) -> None:
        self._regions: list[Tensor] = []
        self._free: list[tuple[int, int]] = []  # start and stop, in order, with something between
        # Tensors may be freed at any time, even while the list is mutated.
        self._returned: deque[tuple[int, int]] = deque()
        self._used = self._most = 0  # bytes, current and peak
        self._is_joined = False
        self._scratch: dict[tuple[TensorSpec, ...], list[Tensor]] = {}
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        """Copy and pickle as a new, empty pool, since addresses are not valid elsewhere."""
        return type(self), ()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Make `allocate` and `scratch` use this pool inside the block."""
        token = _pool.set(self)
        try:
            yield
        finally:
            _pool.reset(token)
            self._scratch.clear()

    def allocate(self, *specs: TensorSpec) -> list[Tensor]:
        """Allocate uninitialized, contiguous tensors next to each other; none is a view.

        Their memory is reused when all of them are freed.
        """
        size, parts = _layout(specs)
        with self._lock:
            start = self._take(size)
        memory = (ctypes.c_char * size).from_address(start)
        memory.lease = _Lease(self, start, size)  # type: ignore[attr-defined]
        return [
            torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).resize_(shape)
            for shape, dtype, count, offset in parts
        ]

    @contextmanager
    def scratch(self, *specs: TensorSpec) -> Iterator[list[Tensor]]:
        """Yield the same tensors in each block with the same specs, until `used` ends."""
        tensors = self._scratch.pop(specs, None)  # two threads must not share them
        tensors = self.allocate(*specs) if tensors is None else tensors
        yield tensors
        self._scratch[specs] = tensors

    def _take(self, size: int) -> int:
        """Allocate bytes; return their address."""
        while self._returned:
            start, stop = self._returned.popleft()
            self._used -= stop - start
            self._release(start, stop)
        if not self._used and len(self._regions) > 1:
            self._join()
        start = self._find(size)
        self._used += size  # last: an allocation that failed is not in use
        self._most = max(self._most, self._used)
        return start

    def _find(self, size: int) -> int:
        """Take the first free block that is large enough; return its address."""
        for number, (start, stop) in enumerate(self._free):
            if stop - start >= size:
                self._free[number : number + 1] = [(start + size, stop)] * (stop - start > size)
                return start
        region = self._add(max(size, _MIN_REGION_BYTES))
        self._release(region + size, region + max(size, _MIN_REGION_BYTES))
        return region

    def _join(self) -> None:
        """Replace several regions by one, to reduce fragmentation.

        Its size is the peak use or, if fragmentation makes that too small, the sum of the regions,
        so that the same update fits again.
        """
        size = sum(map(len, self._regions)) if self._is_joined else self._most
        self._free.clear()  # first: after an interrupt it must not list freed memory
        self._regions.clear()
        start = self._add(size)
        self._release(start, start + size)
        self._is_joined = True

    def _add(self, size: int) -> int:
        """Allocate a region from the system; return its address."""
        (region,) = _huge_pages.allocate(((size,), torch.uint8))
        self._regions.append(region)
        return region.data_ptr()

    def _release(self, start: int, stop: int) -> None:
        """Return a block to the free list, merged with its neighbours."""
        if start == stop:
            return
        insort(self._free, (start, stop))
        merged: list[tuple[int, int]] = []
        for first, last in self._free:
            begin = merged.pop()[0] if merged and merged[-1][1] == first else first
            merged.append((begin, last))
        self._free = merged

    def return_later(self, start: int, stop: int) -> None:
        """Free a block at the next allocation, since a tensor may be collected during one."""
        self._returned.append((start, stop))


_pool: ContextVar[MemoryPool | None] = ContextVar("pool", default=None)


def allocate(*specs: TensorSpec) -> list[Tensor]:
    """Allocate uninitialized tensors on the CPU, from the pool in use if there is one."""
    pool = _pool.get()
    if pool is None:
        return [torch.empty(shape, dtype=dtype, device="cpu") for shape, dtype in specs]
    return pool.allocate(*specs)


def scratch(*specs: TensorSpec) -> AbstractContextManager[list[Tensor]]:
    """Allocate temporary tensors for the block; their memory is reused afterwards.

    They are cached, since creating a tensor takes longer than multiplying a small matrix.
    """
    pool = _pool.get()
    return nullcontext(allocate(*specs)) if pool is None else pool.scratch(*specs)


class _Lease:
    """Keeps a block of a pool in use while it lives."""

    __slots__ = ("_pool", "_start", "_stop")

    def __init__(self, pool: MemoryPool, start: int, size: int) -> None:
        self._pool, self._start, self._stop = pool, start, start + size

    def __del__(self) -> None:
        self._pool.return_later(self._start, self._stop)


@functools.lru_cache(_MAX_LAYOUTS)
def _layout(
    specs: tuple[TensorSpec, ...],
) -> tuple[int, list[tuple[tuple[int, ...], torch.dtype, int, int]]]:
    """Return the total size in bytes, and shape, dtype, size and byte offset of each tensor."""
    parts, offset = [], 0
    for shape, dtype in specs:
        count = prod(shape)
        parts.append((shape, dtype, count, offset))
        offset += -(-count * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
    return offset, parts
