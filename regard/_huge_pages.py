"""Memory for tensors on the CPU in huge pages, where the system has them.

Weights are read whole at every step of generation. In pages of 4 KiB the processor has to find
where each lies, and what it reads ahead ends with the page; in pages of 2 MiB a step of GPT-2's
shape with one sequence takes 3 to 9 % less time. The system gives them to memory that asks for them
before it is written. To ask is advice alone: without such pages the memory is like any other.

Memory that may stay empty is better off without: its first byte takes a page.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from math import prod

import torch
from torch import Tensor

PAGE = 2**21
"""Bytes of a page."""

_LEAST = 2 * PAGE  # of what takes less, too much would be lost at the ends
_ALIGNMENT = 64  # bytes, a line of the processor's caches
_SMALL = 2**16
"""Bytes of a tensor that lies elsewhere: who keeps a gain or a bias is not to keep the model."""


def allocate(*kinds: tuple[Sequence[int], torch.dtype]) -> list[Tensor]:
    """Uninitialized tensors on the CPU, each with a storage of its own, large ones side by side.

    The memory of the large ones is free again when none of them is left.

    Args:
        kinds: of each tensor its shape and dtype.
    """
    sizes = [prod(shape) * dtype.itemsize for shape, dtype in kinds]
    large = [size if size >= _SMALL else 0 for size in sizes]
    *starts, total = accumulate((-(-size // _ALIGNMENT) * _ALIGNMENT for size in large), initial=0)
    memory = _map(total + PAGE) if total >= _LEAST else None
    if memory is None:
        return [torch.empty(shape, dtype=dtype, device="cpu") for shape, dtype in kinds]
    place = -torch.frombuffer(memory, dtype=torch.uint8, count=1).data_ptr() % PAGE
    tensors = []
    for (shape, dtype), size, start in zip(kinds, large, starts, strict=True):
        tensor = torch.empty(0 if size else shape, dtype=dtype, device="cpu")
        if size:
            part = torch.frombuffer(memory, dtype=dtype, count=prod(shape), offset=place + start)
            part = part.view(shape)
            # In place of a view, which keeps the gradient mode that it was made in.
            tensor.set_(part.untyped_storage(), 0, shape, part.stride())
        tensors.append(tensor)
    return tensors


def _map(size: int) -> mmap.mmap | None:
    """Memory that asks for huge pages; None where the system has none, or no more memory."""
    advice = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux has it
    if advice is None:
        return None
    with suppress(OSError):  # torch says in its own error that there is too little
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(advice)
        return memory
    return None
