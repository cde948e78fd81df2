"""Examples of what heads do: the strongest places of a corpus, and a uniform sample of rows.

Both are tables of bounded size that are merged by sorting, so that they do not depend on how the
corpus was divided, nor on its order.

Axes: N heads of all layers, k examples, W tokens of a window, m links.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from torch import Tensor

from regard._shapes import Float, Int

__all__ = ["AFTER", "BEFORE", "LINKS", "SAMPLED", "Examples", "hashes"]

BEFORE, AFTER = 31, 8
"""Tokens of an example's window before its position and behind it."""
SAMPLED = 100
"""Rows of the uniform sample: ten for each tenth by the largest weight."""
LINKS = 5
"""Links that are kept of each example, the strongest."""
_NONE = -1
_MIXED = (-7046029254386353131, -4658895280553007687, -7723592293110705685)  # of splitmix64


@dataclass(eq=False)
class Examples:
    """A table of examples of each head, sorted: the largest value first, then the first document.

    Fields hold −1 where there is no such token or link, and NaN for what was not measured; an empty
    place has value −∞.
    """

    value: Float[Tensor, "N k"]
    """That by which the table is sorted, float64."""
    document: Int[Tensor, "N k"]
    position: Int[Tensor, "N k"]
    """The token's index in its document."""
    start: Int[Tensor, "N k"]
    """Index of the window's first token."""
    window: Int[Tensor, "N k W"]
    """Ids of the tokens around it."""
    link_position: Int[Tensor, "N k m"]
    link_weight: Float[Tensor, "N k m"]
    link_moved: Float[Tensor, "N k m"]
    link_tokens: Int[Tensor, "N k m 3"]
    """Ids of the token before a link's, its own, and the one behind it."""
    numbers: Float[Tensor, "N k 4"]
    """Share at rest, norm moved, logit toward the next token, effect to first order."""

    @classmethod
    def empty(cls, heads: int, count: int) -> Self:
        """Return a table of empty places."""
        size = heads, count

        def whole(*shape: int) -> Tensor:
            return torch.full((*size, *shape), _NONE, dtype=torch.int64, device="cpu")

        def real(*shape: int, like: float = torch.nan) -> Tensor:
            return torch.full((*size, *shape), like, dtype=torch.float64, device="cpu")

        return cls(
            value=real(like=-torch.inf),
            document=whole(),
            position=whole(),
            start=whole(),
            window=whole(BEFORE + 1 + AFTER),
            link_position=whole(LINKS),
            link_weight=real(LINKS),
            link_moved=real(LINKS),
            link_tokens=whole(LINKS, 3),
            numbers=real(4),
        )

    @property
    def lowest(self) -> Float[Tensor, " N"]:
        """The value that a new example must exceed to enter each head's table."""
        return self.value[:, -1]

    def merge(self, other: Examples) -> None:
        """Take the best of both tables, as many as this one has places for."""
        count = self.value.shape[1]
        joined = {
            one.name: torch.cat([getattr(self, one.name), getattr(other, one.name)], dim=1)
            for one in fields(self)
        }
        # By value, then document and position: a stable sort by each, the last first.
        order = joined["position"].argsort(dim=1, stable=True)
        for key, falls in ((joined["document"], False), (joined["value"], True)):
            again = key.gather(1, order).argsort(dim=1, descending=falls, stable=True)
            order = order.gather(1, again)
        order = order[:, :count]
        for name, tensor in joined.items():
            index = order.view(*order.shape, *[1] * (tensor.ndim - 2))
            setattr(self, name, tensor.gather(1, index.expand(-1, -1, *tensor.shape[2:])))

    def of(self, head: int) -> list[dict[str, Any]]:
        """Return the examples of one head, as plain numbers and lists."""
        taken = int((self.value[head] > -torch.inf).sum())
        return [
            {one.name: getattr(self, one.name)[head, place].tolist() for one in fields(self)}
            for place in range(taken)
        ]

    def tensors(self) -> dict[str, Tensor]:
        """Return the fields by name, for a file."""
        return {one.name: getattr(self, one.name).contiguous() for one in fields(self)}

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Restore what `tensors` returned."""
        return cls(**tensors)


def hashes(seed: int, document: int, count: int) -> Int[Tensor, " T"]:
    """Return a pseudorandom number of each position of a document, from 0 to 2⁶² − 1.

    The same in every run: a sample of the smallest is uniform, and that of several shards together.
    """
    start = torch.tensor(seed * 0x9E3779B1 + document, dtype=torch.int64, device="cpu")
    place = torch.arange(count, dtype=torch.int64, device="cpu")
    return _mixed(_mixed(start) + place) & (2**62 - 1)


def _mixed(numbers: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Hash integers to integers: the finalizer of splitmix64."""
    numbers = (numbers + 1) * _MIXED[0]
    numbers = (numbers ^ _shifted(numbers, 30)) * _MIXED[1]
    numbers = (numbers ^ _shifted(numbers, 27)) * _MIXED[2]
    return numbers ^ _shifted(numbers, 31)


def _shifted(numbers: Int[Tensor, "..."], by: int) -> Int[Tensor, "..."]:
    """Shift right, filling with zeros."""
    return (numbers >> by) & (2 ** (64 - by) - 1)
