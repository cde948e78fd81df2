"""A reduction of a pattern, or a comparison of two, as kernels know it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from torch import Tensor

Divergence = Literal["kl", "js", "tv"]
"""KL divergence, Jensen–Shannon divergence, total variation distance."""


class Kind(IntEnum):
    """What kernels compute, by the numbers of ``REGARD_…`` in src/native/abi.h."""

    LOGSUMEXP = 0
    MAX = 1
    ENTROPY = 2
    DISTANCE = 3
    MASS = 4
    TOP = 5
    WEIGHTS = 6
    RECEIVED = 7
    LEFT_PRODUCT = 8
    OFFSETS = 9
    IMAGE = 10
    MAX_SCORE = 11
    LAG = 12
    SPANS = 13
    MAX_RECEIVED = 14
    MEAN_RECEIVED = 15
    MAX_BLOCKS = 16
    REPEATS = 17


@dataclass(frozen=True, eq=False, kw_only=True)
class KernelSpec:
    """What a kernel is to compute; src/native/abi.h says what each number and operand mean."""

    kind: Kind
    shape: tuple[int, ...]
    """Of the result, heads left out."""
    size: int = 0
    columns: int = 0
    height: int = 0
    width: int = 0
    operand: Tensor | None = None
    """Numbers that it needs, contiguous."""
    into: Tensor | None = None
    """Float32 ``(N, *shape)``, contiguous, to which a kernel may add weights and return it."""
