"""The colour of a weight in figures: the same 256 colours as on the explorer's page.

One hue from white to near-black with evenly falling lightness, so it is readable in greyscale and
with any colour-blindness. `regard/page/static/colour.js` computes the same.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from matplotlib.colors import Colormap, ListedColormap, Normalize

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "DECADES",
    "FEW",
    "Scale",
    "ScaleKind",
    "WeightNorm",
    "colours_of",
    "ramp",
    "scale_for",
    "shades",
    "srgb",
    "two_sided",
    "usual",
]

ScaleKind = Literal["log", "linear"]

FEW = 64
"""Up to so many keys the scale is linear: a uniform weight is then at least about 0.01, and a
logarithmic scale would hardly distinguish 0.1 from 0.6."""

DECADES = 4
"""Number of powers of ten that the logarithmic scale spans."""

_HUE, _OTHER_HUE = math.radians(42), math.radians(250)
_LEVELS = 256
_PLENTY = 0.1  # if a single weight is at least this, the scale of single weights ends at 1
_FAINTEST = 1e-6  # smallest upper end of a scale
_STAIN = "#4f8fc0"  # colour of NaN, in another hue


@cache
def ramp() -> tuple[tuple[int, int, int], ...]:
    """Return all colours as RGB, from weight 0 to the largest."""
    places = (level / (_LEVELS - 1) for level in range(_LEVELS))
    return tuple(
        srgb(0.995 - 0.8 * t, 0.004 + 0.155 * math.sin(math.pi * t**0.85) ** 1.1) for t in places
    )


@cache
def shades() -> Colormap:
    """Return the colours as a colour map of matplotlib."""
    colours = np.array(ramp()) / 255
    return ListedColormap(colours, name="regard").with_extremes(bad=_STAIN)


def colours_of(scale: Scale) -> Colormap:
    """Return the colour map of a scale."""
    return two_sided() if scale.signed else shades()


@cache
def two_sided() -> Colormap:
    """Return a diverging colour map: blue below 0, white, orange above."""
    half = [level / (_LEVELS // 2 - 1) for level in range(_LEVELS // 2)]
    below = [srgb(0.995 - 0.5 * t, 0.15 * t**0.8, _OTHER_HUE) for t in reversed(half)]
    above = [srgb(0.995 - 0.4 * t, 0.17 * t**0.8, _HUE) for t in half]
    colours = np.array(below + above) / 255
    return ListedColormap(colours, name="regard two-sided").with_extremes(bad="white")


def srgb(lightness: float, chroma: float, hue: float = _HUE) -> tuple[int, int, int]:
    """Convert a colour from OKLCH to sRGB; the chroma is reduced to fit the gamut."""
    while True:
        a, b = math.cos(hue) * max(chroma, 0), math.sin(hue) * max(chroma, 0)
        l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3  # noqa: E741 - of LMS
        m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
        s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3
        linear = (
            4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
            -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
            -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
        )
        if chroma <= 0 or all(-1e-4 < x < 1.0001 for x in linear):
            red, green, blue = map(_gamma, linear)
            return red, green, blue
        chroma -= 0.004


def _gamma(x: float) -> int:
    y = 12.92 * max(x, 0) if x <= 0.0031308 else 1.055 * min(x, 1) ** (1 / 2.4) - 0.055
    return math.floor(255 * y + 0.5)


class Scale:
    """Maps weights, or signed entries around 0, to positions 0 … 1 on the colour scale."""

    def __init__(self, kind: ScaleKind, high: float, *, signed: bool = False) -> None:
        if kind not in {"log", "linear"}:
            raise ValueError(f"scale must be 'log' or 'linear', but is {kind!r}")
        self.kind, self.high, self.signed = kind, high, signed
        self.low = -high if signed else high * 10.0**-DECADES if kind == "log" else 0.0

    def place(self, values: NDArray[Any]) -> NDArray[Any]:
        """Map values to 0 … 1; NaN stays NaN."""
        if not self.signed:
            return self._part(values)
        return (1 + np.sign(values) * self._part(np.abs(values))) / 2

    def _part(self, values: NDArray[Any]) -> NDArray[Any]:
        if self.kind == "linear":
            return np.clip(values / self.high, 0, 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.clip(1 + np.log10(values / self.high) / DECADES, 0, 1)

    def value_at(self, place: NDArray[Any]) -> NDArray[Any]:
        """Map a position 0 … 1 to its value."""
        if self.signed:
            away = 2 * place - 1
            one_sided = Scale(self.kind, self.high).value_at(np.abs(away))
            return np.where(away == 0, 0, np.sign(away) * one_sided)
        if self.kind == "linear":
            return self.high * place
        return self.high * 10.0 ** (DECADES * (place - 1))

    def ticks(self) -> list[float]:
        """Return the values to label on the colour bar, both ends included."""
        steps = DECADES if self.kind == "log" and not self.signed else 2
        return [float(x) for x in self.value_at(np.linspace(0, 1, steps + 1))]


def usual(keys: int) -> ScaleKind:
    """Return the scale of a picture by the number of keys that it shows."""
    return "linear" if keys <= FEW else "log"


def scale_for(
    kind: ScaleKind, most: float, *, exact: bool, are_weights: bool = True, signed: bool = False
) -> Scale:
    """Choose the scale of a picture.

    It ends at 1 if each pixel is one weight and some weight is at least 0.1, else at a round number
    above the largest value, so that a pattern of 100,000 tokens stays visible. Weights times
    factors have no end; signed ones are seen around 0.
    """
    if not are_weights:
        return Scale(kind, _ceiling(most) if most > 0 else 1.0, signed=signed)
    whole = (exact and most >= _PLENTY) or not most > 0
    return Scale(kind, 1.0 if whole else min(1.0, _ceiling(max(most, _FAINTEST))))


def _ceiling(value: float) -> float:
    base = 10.0 ** math.floor(math.log10(value))
    rounds = [float(f"{factor * base:.0e}") for factor in (1, 2, 5, 10)]
    return next(round_ for round_ in rounds if round_ >= value * 0.9999)


class WeightNorm(Normalize):
    """A scale as a norm of matplotlib: each value gets the colour level that it has on the page."""

    def __init__(self, scale: Scale) -> None:
        super().__init__(scale.low, scale.high, clip=True)
        self.scale = scale

    def __call__(self, value: Any, clip: bool | None = None) -> Any:  # noqa: ARG002, FBT001 - matplotlib's signature
        """Map values to 0 … 1, the middle of their level; NaN is masked."""
        values = np.ma.masked_invalid(np.ma.asarray(value, dtype=np.float64), copy=True)
        place = self.scale.place(np.where(np.ma.getmaskarray(values), 0, values.data))
        level = np.floor((_LEVELS - 1) * place + 0.5)
        return np.ma.array((level + 0.5) / _LEVELS, mask=np.ma.getmaskarray(values))

    def inverse(self, value: Any) -> Any:
        """Map positions to weights."""
        return self.scale.value_at(np.asarray(value))
