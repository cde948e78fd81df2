"""The style of figures: background, text and accent colours, fonts, and the format of numbers.

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
# page.css defines the same as --role-query … --role-context. Contrast on white is above 5:1.
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
    "figure.facecolor": "white",  # on light and dark pages
    "font.family": "DejaVu Sans",  # included in matplotlib
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
    "svg.fonttype": "path",  # independent of installed fonts
    "svg.hashsalt": "regard",  # deterministic files
}

_PLAIN_TEXT = {"text.parse_math": False, "text.usetex": False}  # a token may hold a $
_DPI = 150


class Plot(Figure):
    """A figure that notebooks display without pyplot."""

    def _repr_png_(self) -> bytes:
        written = io.BytesIO()
        self.savefig(written, format="png")
        return written.getvalue()

    @classmethod
    def sized(cls, width: float, height: float) -> Plot:
        """Make an empty figure."""
        return cls(figsize=(_on_grid(width), _on_grid(height)), dpi=_DPI, facecolor="white")

    def place(self, left: float, top: float, width: float, height: float) -> Axes:
        """Add axes; left and top are distances from the figure's upper left corner."""
        left, top = _on_grid(left), _on_grid(top)
        across, down = self.get_size_inches()
        return self.add_axes(
            (left / across, 1 - (top + height) / down, width / across, height / down)
        )


@contextlib.contextmanager
def on_paper() -> Iterator[None]:
    """Use the style of this module inside the block, whatever style is set."""
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
    """Write a vertically centred text."""
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
    """Write a text beside axes: at a position in them, 0 … 1, with an offset in points."""
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
    """Return the side nearest to `side` at which each pixel covers a whole number of dots."""
    return max(1, round(side * _DPI / pixels)) * pixels / _DPI


def interpolation(side: float, pixels: int) -> Literal["none", "auto"]:
    """Return matplotlib's interpolation: none, unless there are fewer dots than pixels."""
    return "none" if side * _DPI > 0.99 * pixels else "auto"


def _on_grid(length: float) -> float:
    return round(length * _DPI) / _DPI


def number(value: float) -> str:
    """Format a number with three digits and a minus sign (U+2212).

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
