"""What is measured: the shapes, their masks, and how torch computes the same.

Axes: B batch, H query heads, G key/value heads, L queries and keys, D head dimension.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch
import torch.nn.functional as F
from torch import Tensor

import regard
from regard import Mask

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]

DTYPES = (torch.float32, torch.bfloat16)
# Tokens of the documents in a packed row of 8192.
DOCUMENTS = (1789, 607, 1321, 512, 2048, 941, 974)


@dataclass(frozen=True)
class Case:
    """Causal attention of one shape, perhaps within a window or within documents."""

    batch: int
    heads: int
    length: int
    dim: int
    groups: int | None = None
    """None: as many as heads."""
    window: int | None = None
    documents: tuple[int, ...] | None = None
    """How long each is."""
    side_by_side: bool = False
    """Whether heads are parts of a row in memory, as models have them; else each is by itself."""

    def __str__(self) -> str:
        heads = f"{self.heads}" if self.groups is None else f"{self.heads}/{self.groups}"
        shape = f"({self.batch},{heads},{self.length},{self.dim})"
        if self.window is not None:
            return f"{shape} window {self.window}"
        if self.side_by_side:
            return f"{shape} side by side"
        return shape if self.documents is None else f"{shape} {len(self.documents)} documents"

    @cached_property
    def mask(self) -> Mask:
        """What each query sees."""
        mask = regard.causal()
        if self.window is not None:
            mask &= regard.window(self.window)
        if self.documents is not None:
            ids = torch.arange(len(self.documents))
            mask &= regard.documents(ids.repeat_interleave(torch.tensor(self.documents)))
        return mask

    @cached_property
    def visible(self) -> int:
        """Entries of all patterns that are not hidden."""
        start, stop = self.mask.intervals(self.length, self.length)
        return self.batch * self.heads * int((stop - start).sum())

    @property
    def operations(self) -> int:
        """Of the forward: a multiplication and an addition in each of two products."""
        return 4 * self.dim * self.visible

    @property
    def of_equal_area(self) -> Case:
        """Causal attention of the length at which the nearest number of entries is visible."""
        entries = self.visible / (self.batch * self.heads)  # of n tokens: n · (n + 1) / 2
        length = round((math.sqrt(1 + 8 * entries) - 1) / 2)
        return Case(self.batch, self.heads, length, self.dim, self.groups)

    @property
    def elements(self) -> int:
        """Numbers in query and key."""
        heads = self.heads + (self.groups or self.heads)
        return self.batch * heads * self.length * self.dim

    def tensors(self, dtype: torch.dtype, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
        """Make query, key and value."""
        groups = self.groups or self.heads
        of_each = (self.heads, groups, groups)
        if self.side_by_side:
            rows = torch.randn(
                self.batch, self.length, sum(of_each), self.dim, dtype=dtype, device=device
            )
            query, key, value = rows.transpose(1, 2).split(of_each, dim=1)
        else:
            query, key, value = (
                torch.randn(self.batch, heads, self.length, self.dim, dtype=dtype, device=device)
                for heads in of_each
            )
        return query, key, value

    def ours(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Compute the context by this package."""
        return regard.attention(query, key, value, mask=self.mask)

    def by_torch(self, dtype: torch.dtype) -> dict[str, Attention]:
        """Every way to compute this with torch; dense masks are made beforehand."""
        if self.window is None and self.documents is None:
            grouped = self.groups is not None
            return {
                "is_causal": partial(
                    F.scaled_dot_product_attention, is_causal=True, enable_gqa=grouped
                )
            }
        hidden = ~self.mask.visible(self.length, self.length)
        dense = torch.zeros(hidden.shape, dtype=dtype).masked_fill(hidden, -torch.inf)
        ways: dict[str, Attention] = {
            "dense mask": partial(F.scaled_dot_product_attention, attn_mask=dense)
        }
        if self.documents is not None:
            ways["a call a document"] = partial(_each_document, self.documents)
        return ways


def _each_document(documents: tuple[int, ...], query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    parts = zip(*(t.split(documents, dim=-2) for t in (query, key, value)), strict=True)
    contexts = [F.scaled_dot_product_attention(q, k, v, is_causal=True) for q, k, v in parts]
    return torch.cat(contexts, dim=-2)


WINDOWED = Case(1, 12, 8192, 64, window=512)
PACKED = Case(1, 12, 8192, 64, documents=DOCUMENTS)
CASES = (
    Case(64, 6, 64, 32),
    Case(8, 12, 256, 64),
    Case(1, 12, 1024, 64),
    Case(1, 16, 2048, 128),
    Case(1, 32, 2048, 128, groups=8),
    Case(1, 12, 4096, 64),
    Case(1, 12, 4096, 64, side_by_side=True),
    Case(1, 16, 2048, 128, side_by_side=True),
    WINDOWED,
    PACKED,
    Case(1, 12, 16384, 64),
)


def name_of(dtype: torch.dtype) -> str:
    """The dtype without its module."""
    return str(dtype).removeprefix("torch.")
