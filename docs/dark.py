"""A picture that turns dark where its reader's screen is.

A colour of the picture keeps its hue, and its lightness is turned round: white becomes the dark
page's ground, ink becomes light. So one rule holds for paper, ink, tints and lines alike.
"""

from __future__ import annotations

import math
import re

from regard.view.plot.colour import srgb

__all__ = ["oklch", "turned", "with_dark_colours"]

_PAINT = re.compile(r"(fill|stroke): (#[0-9a-f]{6})")
_GROUND = 0.22  # lightness that white becomes


def with_dark_colours(svg: str) -> str:
    """An SVG with a second set of colours, for ``prefers-color-scheme: dark``.

    The first set stays as it is written, for programs that know no such rules.
    """
    rules = "".join(
        f'[style*="{kind}: {colour}"]{{{kind}:{turned(colour)}!important}}\n'
        for kind, colour in sorted(set(_PAINT.findall(svg)))
    )
    style = f"<style>@media (prefers-color-scheme: dark) {{\n{rules}}}</style>\n"
    end = svg.index(">", svg.index("<svg")) + 1
    return f"{svg[:end]}\n{style}{svg[end:]}"


def turned(colour: str) -> str:
    """The same hue with its lightness turned round.

    >>> turned("#ffffff"), turned("#24292f")
    ('#1b1b1b', '#e6ecf5')
    """
    lightness, chroma, hue = oklch(colour)
    return "#{:02x}{:02x}{:02x}".format(*srgb(_GROUND + 1 - lightness, chroma, hue))


def oklch(colour: str) -> tuple[float, float, float]:
    """Lightness 0 … 1, chroma and hue (radians) of a colour such as ``#b3431e``.

    By Ottosson 2020, "A perceptual color space for image processing".
    """
    red, green, blue = (_linear(part / 255) for part in bytes.fromhex(colour.removeprefix("#")))
    long = math.cbrt(0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue)
    middle = math.cbrt(0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue)
    short = math.cbrt(0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue)
    lightness = 0.2104542553 * long + 0.793617785 * middle - 0.0040720468 * short
    a = 1.9779984951 * long - 2.428592205 * middle + 0.4505937099 * short
    b = 0.0259040371 * long + 0.7827717662 * middle - 0.808675766 * short
    return lightness, math.hypot(a, b), math.atan2(b, a)


def _linear(x: float) -> float:
    return x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4
