"""The interval masks: where each query's visible keys start and stop.

Axes: B batch, H query heads, L queries, S keys; b and h are B or 1, H or 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch

from regard._axes import align

if TYPE_CHECKING:
    from torch import Tensor

    Bounds = tuple[Tensor | int, Tensor | int]


@runtime_checkable
class Term(Protocol):
    """One interval mask: where each query's keys start and stop, before clamping to ``[0, S)``."""

    def bounds(self, positions: Tensor, keys: int, lead: tuple[int, ...]) -> Bounds:
        """Give start and stop, broadcastable to the positions ``(B, H, L)``."""

    def line(self, position: int) -> tuple[int | None, int | None] | None:
        """Give start and stop of a query at this position, if both move on with the position.

        None in their place where an end lies outside the keys; None for both if they are no line.
        """


@dataclass(frozen=True)
class Causal:
    """Each query sees its own position and those before it."""

    def __repr__(self) -> str:
        return "causal()"

    def bounds(self, positions: Tensor, keys: int, lead: tuple[int, ...]) -> Bounds:  # noqa: ARG002 - Term's signature
        return 0, positions + 1

    def line(self, position: int) -> tuple[int | None, int | None]:
        return None, position + 1


@dataclass(frozen=True)
class Window:
    """Each query sees the last positions, its own included, and some later ones."""

    size: int
    ahead: int

    def __repr__(self) -> str:
        return f"window({self.size}, ahead={self.ahead})" if self.ahead else f"window({self.size})"

    def bounds(self, positions: Tensor, keys: int, lead: tuple[int, ...]) -> Bounds:  # noqa: ARG002 - Term's signature
        return positions - self.size + 1, positions + self.ahead + 1

    def line(self, position: int) -> tuple[int | None, int | None]:
        return position - self.size + 1, position + self.ahead + 1


@dataclass(frozen=True, eq=False)
class Prefix:
    """Everyone sees the first keys; beyond them, only what is not later."""

    length: int | Tensor

    def __repr__(self) -> str:
        return f"prefix({self.length})"

    def bounds(self, positions: Tensor, keys: int, lead: tuple[int, ...]) -> Bounds:  # noqa: ARG002 - Term's signature
        length = torch.as_tensor(self.length, device=positions.device)
        return 0, torch.maximum(align(length[..., None], lead, "length"), positions + 1)

    def line(self, position: int) -> None: ...


@dataclass(frozen=True, eq=False)
class Documents:
    """Each query sees the document it sits in."""

    first: Tensor
    """First key of the document that each key lies in."""
    last: Tensor
    """The key behind that document's last."""

    def __repr__(self) -> str:
        return f"documents({tuple(self.first.shape)})"

    def bounds(self, positions: Tensor, keys: int, lead: tuple[int, ...]) -> Bounds:
        _check_length("ids", self.first.shape[-1], keys)
        inside = (positions >= 0) & (positions < keys)
        index = positions.clamp(0, max(keys - 1, 0))

        def look_up(table: Tensor) -> Tensor:
            table = align(table.to(positions.device), lead, "ids")
            shape = torch.broadcast_shapes(table.shape[:-1], index.shape[:-1])
            return table.expand(*shape, -1).gather(-1, index.expand(*shape, -1))

        if keys == 0:
            return 0, 0
        return look_up(self.first), torch.where(inside, look_up(self.last), 0)

    def line(self, position: int) -> None: ...


@dataclass(frozen=True, eq=False)
class Padding:
    """Every query sees the keys that are no padding."""

    start: Tensor
    stop: Tensor
    keys: int

    def __repr__(self) -> str:
        return f"padding({(*self.start.shape, self.keys)})"

    def bounds(self, positions: Tensor, keys: int, lead: tuple[int, ...]) -> Bounds:
        _check_length("keep", self.keys, keys)
        start, stop = self.start.to(positions.device), self.stop.to(positions.device)
        return align(start[..., None], lead, "keep"), align(stop[..., None], lead, "keep")

    def line(self, position: int) -> None: ...


@dataclass(frozen=True, eq=False)
class Intervals:
    """Each query sees the keys from its start to its stop."""

    start: Tensor
    stop: Tensor

    def __repr__(self) -> str:
        return f"intervals({tuple(self.start.shape)})"

    def bounds(self, positions: Tensor, keys: int, lead: tuple[int, ...]) -> Bounds:  # noqa: ARG002 - Term's signature
        queries = positions.shape[-1]
        if self.start.shape[-1] != queries:
            raise ValueError(
                f"intervals covers {self.start.shape[-1]} queries, but there are {queries}; give "
                "one start and one stop a query"
            )
        start, stop = self.start.to(positions.device), self.stop.to(positions.device)
        return align(start, lead, "start"), align(stop, lead, "stop")

    def line(self, position: int) -> None: ...


def runs(changes: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Start and stop of the run of equal ids that each position lies in, ``(..., S)``."""
    keys = ids.shape[-1]
    index = torch.arange(keys, device=ids.device).expand(ids.shape)
    if keys == 0:
        return index, index
    edge = torch.nn.functional.pad(changes, (1, 0), value=True)
    first = torch.where(edge, index, 0).cummax(-1).values
    stop = torch.nn.functional.pad(changes, (0, 1), value=True)
    last = torch.where(stop, index + 1, keys).flip(-1).cummin(-1).values.flip(-1)
    return first, last


def _check_length(name: str, got: int, keys: int) -> None:
    if got != keys:
        raise ValueError(f"{name} covers {got} keys, but there are {keys}; give one entry a key")
