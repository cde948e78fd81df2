"""The largest scaled score: what grows where training diverges.

Axes: N heads numbered through, L queries, S keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from regard._arguments import check_choice
from regard.backends.kernel_spec import KernelSpec, Kind
from regard.pattern.readout import Readout, Sizes, Tile
from regard.pattern.stream import WeightBlock

__all__ = ["MaxScore"]


@dataclass(frozen=True)
class MaxScore(Readout["Tensor", "Tensor"]):
    """The largest scaled score, scale · q·k, over the keys that are seen: ``(..., L)``.

    That is before softcap and bias, which would hide its growth; −inf where no key is seen. The
    largest of a head, ``(...)``, is what QK-clip calls the max logit and keeps below a bound while
    training (Kimi Team 2025, arXiv:2507.20534).

    Args:
        each: one number for each ``"query"``, or for each ``"head"``.

    Example:
        >>> import regard, torch
        >>> x = 3 * torch.eye(3)
        >>> pattern = regard.Pattern(x, x, mask=regard.causal(offset=-1), scale=1.0)
        >>> pattern.read(regard.readouts.MaxScore(), regard.readouts.MaxScore("head"))
        (tensor([-inf, 0., 0.]), tensor(0.))
    """

    each: Literal["query", "head"] = "query"

    def __post_init__(self) -> None:
        check_choice("each", self.each, ("query", "head"))

    @property
    def axes(self) -> tuple[str, ...]:
        """Queries, or none."""
        return ("query",) if self.each == "query" else ()

    @property
    def reduction(self) -> Literal["sum", "max"]:
        """The largest of all ranks."""
        return "max"

    def begin(self, sizes: Sizes) -> Tensor:
        """Start from rows that see nothing."""
        return sizes.zeros(*sizes.along(self.axes)).fill_(-torch.inf)

    def add(self, state: Tensor, block: WeightBlock) -> None:
        """Take the block's rows."""
        seen = WeightBlock.seen(block.log_weights)
        largest = torch.where(seen, block.scaled(), -torch.inf).amax(dim=-1).double()
        if self.each == "query":
            state[block.heads, block.rows] = largest
        else:
            of_heads = state[block.heads]
            of_heads.copy_(torch.maximum(of_heads, largest.amax(dim=-1)))

    def kernel_spec(self, sizes: Sizes) -> KernelSpec:
        """Find the largest of each row."""
        return KernelSpec(kind=Kind.MAX_SCORE, shape=(sizes.queries,))

    def from_kernel(self, tensors: tuple[Tensor, ...], sizes: Sizes) -> Tensor:
        """Restore, or find the largest of each head."""
        (rows,) = tensors
        return sizes.restore(rows if self.each == "query" else rows.amax(dim=-1))

    def merge(self, state: Tensor, tile: Tile, results: tuple[Any, ...]) -> None:
        """Take the larger."""
        part = state[:, tile.local_queries] if self.each == "query" else state
        part.copy_(torch.maximum(part, results[0]))
