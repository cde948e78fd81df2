"""Memory that the updates of a training run reuse.

What an update saves for its backward pass is more than the C library keeps: it returns the memory
to the system, which clears each page when the next update touches it. That took a sixth of an
update. A pool keeps the memory, in huge pages where the system has them.
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
_MIN_REGION_BYTES = (
    2**25
)  # bytes that a pool asks the system for; those never written take no memory
_MAX_LAYOUTS = 256


class MemoryPool:
    """A pool of CPU memory for tensors: a block is reused once none of its tensors is left.

    All memory is freed when the pool and its tensors are gone.
    """

    def __init__(self) -> None:
        self._regions: list[Tensor] = []
        self._free: list[tuple[int, int]] = []  # start and stop, in order, with something between
        # Tensors may go at any time, in the middle of a change of the list too.
        self._returned: deque[tuple[int, int]] = deque()
        self._used = self._most = 0  # bytes, now and at most
        self._is_joined = False
        self._scratch: dict[tuple[TensorSpec, ...], list[Tensor]] = {}
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        """Copies and pickles are new, empty pools: addresses mean nothing elsewhere."""
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
        """Uninitialized tensors, contiguous and none a view, side by side.

        Their memory is reused when none of them is left.
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
        """The same tensors at each call with the same specs, until `used` ends."""
        tensors = self._scratch.pop(specs, None)  # so that two threads never have the same
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
        self._used += size  # last: what the system refuses is not in use
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
        """Replace several regions, between which memory is lost, by one.

        At first it is as large as the peak use. If fragmentation makes that too small, it is as
        large as the regions together, so that the same update fits again.
        """
        size = sum(map(len, self._regions)) if self._is_joined else self._most
        self._free.clear()  # first: an interrupt between the two must not leave freed memory in it
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
        """Free a block at the next allocation: a tensor may be collected during another one."""
        self._returned.append((start, stop))


_pool: ContextVar[MemoryPool | None] = ContextVar("pool", default=None)


def allocate(*specs: TensorSpec) -> list[Tensor]:
    """Uninitialized tensors on the CPU, from the pool in use; without one each by itself."""
    pool = _pool.get()
    if pool is None:
        return [torch.empty(shape, dtype=dtype, device="cpu") for shape, dtype in specs]
    return pool.allocate(*specs)


def scratch(*specs: TensorSpec) -> AbstractContextManager[list[Tensor]]:
    """As `allocate`, for use inside the block: afterwards others write to them.

    To make a tensor takes longer than to multiply a small matrix.
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
    """The size of all, and of each its shape, dtype, number of elements and offset, in bytes."""
    parts, offset = [], 0
    for shape, dtype in specs:
        count = prod(shape)
        parts.append((shape, dtype, count, offset))
        offset += -(-count * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
    return offset, parts
