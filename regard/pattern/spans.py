"""The weight of each row on each of many spans of keys, in one pass.

Axes: N = B·H flattened heads, L queries, S keys; a block has n heads, R rows, C columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard._arguments import check_integers, tensor_of
from regard._shapes import Int
from regard._tensors import upload
from regard.backends.kernel_spec import KernelSpec, Kind
from regard.pattern.readout import Readout, Sizes, Tile
from regard.pattern.stream import WeightBlock

__all__ = ["Spans"]


@dataclass(frozen=True, eq=False)
class Spans(Readout[tuple["Tensor", "Tensor"], "Tensor"]):
    """The weight of each row on each of n spans: ``(..., L, n)``.

    It is `Mass` for many sets of keys in one pass, such as the passages, images or turns of a
    prompt. The keys of a span need not be contiguous.

    Args:
        labels: ``(S,)``, the index of the span of each key, 0 … n−1; negative for a key in no span.
            Keys after the last label, such as those of generated tokens, are in no span. Labels
            after the last key must be negative.
        n: number of spans; None for the largest label plus 1.

    Raises:
        TypeError: for labels that are not integers.
        ValueError: for labels that are not a vector, or not below n.

    Example:
        >>> import regard, torch
        >>> pattern = regard.Pattern(torch.zeros(1, 2), torch.zeros(5, 2))
        >>> pattern.spans([0, 0, 1, -1, 1])
        tensor([[0.4000, 0.4000]])
    """

    axes = ("query", "span")

    labels: Sequence[int] | Int[Tensor, "S"]
    n: int | None = None

    def __post_init__(self) -> None:
        labels = tensor_of(self.labels)
        labels = labels.detach() if labels.numel() else labels.long()
        check_integers(labels, "labels")
        if labels.ndim != 1:
            raise ValueError(
                f"labels must be a vector, one for each key, but have shape {tuple(labels.shape)}"
            )
        largest = max(int(labels.max()), -1) if labels.numel() else -1
        n = largest + 1 if self.n is None else self.n
        if n <= largest:
            raise ValueError(f"labels go up to {largest}, but n={n}; n must be above them")
        object.__setattr__(self, "labels", labels.long())
        object.__setattr__(self, "n", n)

    @property
    def is_linear(self) -> bool:
        """True: it is a sum of weights."""
        return True

    def begin(self, sizes: Sizes) -> tuple[Tensor, Tensor]:
        """Start from 0, with one more column for keys in no span."""
        labels, n = self._padded(sizes), self.n or 0
        return sizes.zeros(sizes.queries, n + 1), torch.where(labels < 0, n, labels)

    def add(self, state: tuple[Tensor, Tensor], block: WeightBlock) -> None:
        """Sum over the keys of each span, in a fixed order."""
        sums, column = state
        weights = block.weights.permute(2, 1, 0).double()  # (C, R, n)
        of_spans = weights.new_zeros(sums.shape[-1], *weights.shape[1:])
        of_spans.index_add_(0, column[block.columns], weights)
        sums[block.heads, block.rows] = of_spans.permute(2, 1, 0)

    def finish(self, state: tuple[Tensor, Tensor], sizes: Sizes) -> Tensor:
        """Drop the column of keys in no span."""
        return sizes.restore(state[0][..., :-1])

    def kernel_spec(self, sizes: Sizes) -> KernelSpec | None:
        """Describe the labels for the kernels."""
        labels, n = self._padded(sizes), self.n or 0
        return KernelSpec(kind=Kind.SPANS, shape=(sizes.queries, n), size=n, operand=labels)

    def of_tile(self, state: tuple[Tensor, Tensor], tile: Tile) -> tuple[Readout[Any, Any], ...]:
        """Restrict the labels to the tile's keys."""
        _, column = state
        return (Spans(torch.where(column < state[0].shape[-1] - 1, column, -1)[tile.keys], self.n),)

    def merge(self, state: tuple[Tensor, Tensor], tile: Tile, results: tuple[Any, ...]) -> None:
        """Add the weight on the tile's keys."""
        state[0][:, tile.local_queries, :-1] += results[0]

    def within(self, keys: int) -> Spans:
        """Drop the labels of later keys, if any of them is in a span."""
        labels = tensor_of(self.labels)
        return Spans(labels[:keys], self.n) if _any_of_a_span(labels[keys:]) else self

    def _padded(self, sizes: Sizes) -> Int[Tensor, "S"]:
        labels = upload(tensor_of(self.labels), sizes.device)
        if _any_of_a_span(labels[sizes.keys :]):
            raise ValueError(
                f"labels are {labels.numel()}, but there are only {sizes.keys} keys; give one each"
            )
        return pad(labels, (0, sizes.keys - labels.numel()), value=-1)  # truncates longer labels


def _any_of_a_span(labels: Int[Tensor, "s"]) -> bool:
    return labels.numel() > 0 and bool((labels >= 0).any())
