"""A reduction of a pattern as kernels know it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

KINDS = (  # as src/native/abi.h numbers them
    "logsumexp",
    "max",
    "entropy",
    "distance",
    "mass",
    "top",
    "weights",
    "received",
    "collected",
    "offsets",
    "image",
)


@dataclass(frozen=True, eq=False, kw_only=True)
class KernelSpec:
    """What a kernel is to compute; src/native/abi.h says what size, columns and given mean."""

    kind: str
    shape: tuple[int, ...]
    """Of the result, heads left out."""
    size: int = 0
    columns: int = 0
    given: Tensor | None = None
    """Numbers that it needs, contiguous."""

    def __post_init__(self) -> None:
        assert self.kind in KINDS, f"{self.kind} is none of {KINDS}"
