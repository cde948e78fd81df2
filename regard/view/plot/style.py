"""What figures are drawn with: paper, ink, one accent, and numbers as they are written.

Lengths are in inches. Figures are made without pyplot: no window, no display, no current figure.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import matplotlib as mpl
import matplotlib.style
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "ACCENT",
    "FAINT",
    "INK",
    "LINE",
    "ROLES",
    "STYLE",
    "Plot",
    "canvas",
    "caption",
    "crisp",
    "interpolation",
    "number",
    "on_paper",
    "write",
]

INK = "#24292f"
FAINT = "#6e7781"
LINE = "#d0d7de"

# One colour for each part of attention, in figures, on the page and in the pictures of the docs;
# page.css has the same ones as --role-query … --role-context. Contrast on white: above 5:1.
ROLES = {
    "query": "#7444b4",
    "key": "#00736a",
    "value": "#aa295f",
    "score": "#5c646f",
    "weight": "#b3431e",
    "context": "#536e09",
}
ACCENT = ROLES["weight"]

STYLE: dict[str, Any] = {
    "figure.facecolor": "white",  # paper: the same on a light page and on a dark one
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 11,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "svg.fonttype": "path",  # letters look the same where the font is missing
    "svg.hashsalt": "regard",  # the same picture gives the same file
}

_PLAIN_TEXT = {"text.parse_math": False, "text.usetex": False}  # a token may hold a $
_DPI = 150


class Plot(Figure):
    """A figure that a notebook shows by itself, whether or not pyplot was ever imported."""

    def _repr_png_(self) -> bytes:
        written = io.BytesIO()
        self.savefig(written, format="png")
        return written.getvalue()

    @classmethod
    def sized(cls, width: float, height: float) -> Plot:
        """Make an empty one."""
        return cls(figsize=(_on_grid(width), _on_grid(height)), dpi=_DPI, facecolor="white")

    def place(self, left: float, top: float, width: float, height: float) -> Axes:
        """Add axes whose upper left corner lies so far from the figure's."""
        left, top = _on_grid(left), _on_grid(top)
        across, down = self.get_size_inches()
        return self.add_axes(
            (left / across, 1 - (top + height) / down, width / across, height / down)
        )


@contextlib.contextmanager
def on_paper() -> Iterator[None]:
    """Draw in the style of this module, whatever style is set."""
    with mpl.style.context(["default", STYLE, _PLAIN_TEXT]):
        yield


def canvas(width: float, height: float, kind: type[Figure] = Figure) -> tuple[Figure, Axes]:
    """Make a figure to draw on, x to the right and y down from the top left."""
    figure = kind.sized(width, height) if issubclass(kind, Plot) else kind(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    return figure, axes


def write(axes: Axes, x: float, y: float, text: str, align: str = "center", **style: Any) -> None:
    """Write a text, centred in height."""
    axes.text(x, y, text, **{"ha": align, "va": "center", **style})


def caption(
    ax: Axes,
    text: str,
    at: tuple[float, float],
    offset: tuple[float, float],
    *,
    size: float = 8,
    color: str = FAINT,
    **align: Any,
) -> None:
    """Write a text beside axes: at a place in them, 0 … 1, and so many points off."""
    ax.annotate(
        text,
        at,
        xycoords="axes fraction",
        xytext=offset,
        textcoords="offset points",
        fontsize=size,
        color=color,
        parse_math=False,
        annotation_clip=False,
        **align,
    )


def crisp(side: float, pixels: int) -> float:
    """The side nearest to one wanted at which each pixel of a picture takes whole dots."""
    return max(1, round(side * _DPI / pixels)) * pixels / _DPI


def interpolation(side: float, pixels: int) -> Literal["none", "auto"]:
    """How to draw a picture: pixel by pixel, unless there are fewer dots than pixels."""
    return "none" if side * _DPI > 0.99 * pixels else "auto"


def _on_grid(length: float) -> float:
    return round(length * _DPI) / _DPI


def number(value: float) -> str:
    """Write a number with three digits, and a true minus.

    >>> number(0.25), number(-1.2345), number(2e-5), number(float("-inf"))
    ('0.25', '−1.23', '2e−5', '−∞')
    """
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if math.isnan(value):
        return "NaN"
    digits, _, exponent = f"{value:.3g}".partition("e")
    if digits in {"-0", "0"}:
        return "0"
    return (f"{digits}e{int(exponent)}" if exponent else digits).replace("-", "−")
