"""The description of a readout for kernels."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from torch import Tensor

Divergence = Literal["kl", "js", "tv"]
"""KL divergence, Jensen–Shannon divergence, total variation distance."""


class Kind(IntEnum):
    """The kernels' readouts, with the values of the constants ``REGARD_…`` in src/native/abi.h."""

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
    """A readout for a kernel; src/native/abi.h documents the numbers and the operand."""

    kind: Kind
    shape: tuple[int, ...]
    """Shape of the result without heads."""
    size: int = 0
    columns: int = 0
    height: int = 0
    width: int = 0
    operand: Tensor | None = None
    """A contiguous input tensor."""
    into: Tensor | None = None
    """Contiguous float32 ``(N, *shape)``, N flattened heads, that a kernel may accumulate into."""
