"""The interval masks: start and stop of each query's visible keys.

Axes: B batch, H query heads, L queries, S keys; b and h are B or 1, H or 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor

from regard._tensors import align, broadcast_shapes, upload

if TYPE_CHECKING:
    Bounds = tuple[Tensor | int, Tensor | int]


@runtime_checkable
class Term(Protocol):
    """One interval mask: start and stop of each query's keys, before clamping to ``[0, S]``."""

    @property
    def is_fixed(self) -> bool:
        """True if it holds no tensor of the caller, who could mutate it."""

    def bounds(self, positions: Tensor, keys: int, leading: tuple[int, ...]) -> Bounds:
        """Compute start and stop, broadcastable to the positions ``(B, H, L)``."""

    def affine(self, position: int) -> tuple[int | None, int | None] | None:
        """Compute start and stop of a query at this position, if both are affine in it.

        A start or stop of None hides nothing. The result is None if either is not affine with
        slope 1.
        """


@dataclass(frozen=True)
class Causal:
    """Each query sees its own position and all earlier ones."""

    is_fixed = True

    def __repr__(self) -> str:
        return "causal()"

    def bounds(self, positions: Tensor, keys: int, leading: tuple[int, ...]) -> Bounds:  # noqa: ARG002 - Term's signature
        return 0, positions + 1

    def affine(self, position: int) -> tuple[int | None, int | None]:
        return None, position + 1


@dataclass(frozen=True)
class Window:
    """Each query sees the last ``size`` positions, its own included, and ``ahead`` later ones."""

    size: int
    ahead: int

    is_fixed = True

    def __repr__(self) -> str:
        return f"window({self.size}, ahead={self.ahead})" if self.ahead else f"window({self.size})"

    def bounds(self, positions: Tensor, keys: int, leading: tuple[int, ...]) -> Bounds:  # noqa: ARG002 - Term's signature
        return positions - self.size + 1, positions + self.ahead + 1

    def affine(self, position: int) -> tuple[int | None, int | None]:
        return position - self.size + 1, position + self.ahead + 1


@dataclass(frozen=True, eq=False)
class Prefix:
    """Every query sees the first keys, and after them only keys that are not later."""

    length: int | Tensor

    def __repr__(self) -> str:
        return f"prefix({self.length})"

    @property
    def is_fixed(self) -> bool:
        return not isinstance(self.length, Tensor)

    def bounds(self, positions: Tensor, keys: int, leading: tuple[int, ...]) -> Bounds:  # noqa: ARG002 - Term's signature
        later = positions + 1
        if not isinstance(self.length, Tensor):
            return 0, later.clamp(min=self.length)
        length = upload(self.length, positions.device)[..., None]
        return 0, torch.maximum(align(length, leading, "length"), later)

    def affine(self, position: int) -> None: ...


@dataclass(frozen=True, eq=False)
class Documents:
    """Each query sees the keys of its own document."""

    start: Tensor
    """First key of each key's document."""
    stop: Tensor
    """One past the last key of each key's document."""

    is_fixed = True

    def __repr__(self) -> str:
        return f"documents({tuple(self.start.shape)})"

    def bounds(self, positions: Tensor, keys: int, leading: tuple[int, ...]) -> Bounds:
        _check_length("ids", self.start.shape[-1], keys)
        inside = (positions >= 0) & (positions < keys)
        index = positions.clamp(0, max(keys - 1, 0))

        def look_up(table: Tensor) -> Tensor:
            table = align(upload(table, positions.device), leading, "ids")
            shape = broadcast_shapes(table.shape[:-1], index.shape[:-1])
            return table.expand(*shape, -1).gather(-1, index.expand(*shape, -1))

        if keys == 0:
            return 0, 0
        return look_up(self.start), torch.where(inside, look_up(self.stop), 0)

    def affine(self, position: int) -> None: ...


@dataclass(frozen=True, eq=False)
class Padding:
    """Every query sees the keys that are not padding."""

    start: Tensor
    stop: Tensor
    keys: int

    is_fixed = True

    def __repr__(self) -> str:
        return f"padding({(*self.start.shape, self.keys)})"

    def bounds(self, positions: Tensor, keys: int, leading: tuple[int, ...]) -> Bounds:
        _check_length("keep", self.keys, keys)
        start, stop = (upload(table, positions.device) for table in (self.start, self.stop))
        return align(start[..., None], leading, "keep"), align(stop[..., None], leading, "keep")

    def affine(self, position: int) -> None: ...


@dataclass(frozen=True, eq=False)
class Intervals:
    """Each query sees the keys from its start to its stop."""

    start: Tensor
    stop: Tensor

    is_fixed = False

    def __repr__(self) -> str:
        return f"intervals({tuple(self.start.shape)})"

    def bounds(self, positions: Tensor, keys: int, leading: tuple[int, ...]) -> Bounds:  # noqa: ARG002 - Term's signature
        queries = positions.shape[-1]
        if self.start.shape[-1] != queries:
            raise ValueError(
                f"intervals covers {self.start.shape[-1]} queries, but there are {queries}; give "
                "one start and one stop per query"
            )
        start, stop = (upload(table, positions.device) for table in (self.start, self.stop))
        return align(start, leading, "start"), align(stop, leading, "stop")

    def affine(self, position: int) -> None: ...


def runs(changes: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Compute start and stop of each position's run of equal ids, ``(..., S)``."""
    keys = ids.shape[-1]
    index = torch.arange(keys, device=ids.device).expand(ids.shape)
    if keys == 0:
        return index, index
    edge = torch.nn.functional.pad(changes, (1, 0), value=True)
    start = torch.where(edge, index, 0).cummax(-1).values
    edge = torch.nn.functional.pad(changes, (0, 1), value=True)
    stop = torch.where(edge, index + 1, keys).flip(-1).cummin(-1).values.flip(-1)
    return start, stop


def _check_length(name: str, length: int, keys: int) -> None:
    if length != keys:
        raise ValueError(
            f"{name} covers {length} keys, but there are {keys}; give one entry per key"
        )
