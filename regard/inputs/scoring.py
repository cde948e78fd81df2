"""The options that determine the weights: mask, scale, softcap, bias, ALiBi, sink.

Public functions take them as keywords, ``**options: Unpack[ScoringOptions]``; inside the package
they are passed as one `Scoring`. To add an option, add a field to both classes and a line to
`regard.inputs.check`, which converts it to the layout of a `Problem`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor

from regard._arguments import check_floating
from regard.masks import Mask

_LARGEST = 1e38
"""Largest scale or softcap: its products with constants stay within float32."""


class ScoringOptions(TypedDict, total=False):
    """The options as keywords, documented at `regard.attention`."""

    mask: Mask | None
    scale: float | None
    softcap: float | None
    bias: Tensor | None
    alibi: Tensor | None
    sink: Tensor | None


def check_mask(mask: object) -> None:
    """Raise TypeError unless `mask` is a `regard.Mask` or None."""
    if mask is not None and not isinstance(mask, Mask):
        cure = "; wrap a tensor as regard.dense(mask)" if isinstance(mask, Tensor) else ""
        kind = type(mask).__name__
        raise TypeError(f"mask must be a regard.Mask or None, but is {kind}{cure}")


@dataclass(frozen=True, eq=False, kw_only=True)
class Scoring:
    """The options of one attention call, each checked separately.

    Raises:
        TypeError: for an option of the wrong type.
        ValueError: for a number out of its range.
    """

    mask: Mask | None = None
    scale: float | None = None
    softcap: float | None = None
    bias: Tensor | None = None
    alibi: Tensor | None = None
    sink: Tensor | None = None

    def __post_init__(self) -> None:
        check_mask(self.mask)
        if self.scale is not None and not (
            -math.inf < check_number("scale", self.scale) < math.inf
        ):
            raise ValueError(f"scale must be finite, but is {self.scale}; None means 1/√D")
        if self.softcap is not None and not 0 < check_number("softcap", self.softcap) < math.inf:
            raise ValueError(
                f"softcap must be above 0 and finite, but is {self.softcap}; None turns it off"
            )
        if isinstance(self.bias, Tensor) and self.bias.dtype == torch.bool:
            raise TypeError(
                "bias must be floating point, but is torch.bool; pass it as mask=regard.dense(bias)"
            )
        for name in ("bias", "alibi", "sink"):
            if getattr(self, name) is not None:
                check_floating(getattr(self, name), name)

    def check_dtype(self, dtype: torch.dtype) -> None:
        """Check that scale and softcap are in range for tensors of this dtype.

        Raises:
            ValueError: if one is out of range.
        """
        if dtype == torch.float64:
            return
        cure = "in float32; pass float64 tensors for a larger range"
        if self.scale is not None and abs(self.scale) > _LARGEST:
            raise ValueError(f"scale must be within ±{_LARGEST:.0e}, but is {self.scale} {cure}")
        smallest = 1 / _LARGEST
        if self.softcap is not None and not smallest <= self.softcap <= _LARGEST:
            raise ValueError(
                f"softcap must be between {smallest:.0e} and {_LARGEST:.0e}, but is "
                f"{self.softcap} {cure}"
            )

    @classmethod
    def of(cls, options: ScoringOptions) -> Scoring:
        """Build from the keywords of a public call.

        Raises:
            TypeError: for a keyword that is not an option.
        """
        known = ScoringOptions.__annotations__
        for name in options:
            if name not in known:
                raise TypeError(
                    f"{name!r} is not an option of attention; expected {', '.join(known)}"
                )
        return cls(**options)


def check_number(name: str, number: object) -> float:
    """Check that an option is a Python number, and return it as a float.

    Raises:
        TypeError: if it is not.
        ValueError: for an integer that is too large for a float.
    """
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        cure = f"; try {name}.item()" if isinstance(number, Tensor) else ""
        raise TypeError(f"{name} must be a number, but is {type(number).__name__}{cure}")
    try:
        return float(number)
    except OverflowError:
        raise ValueError(f"{name} must fit in a float, but is a larger integer") from None
