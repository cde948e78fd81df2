"""Weights as background shades, readable on a dark terminal and on a light one."""

from __future__ import annotations

from rich.style import Style
from rich.text import Text

__all__ = ["legend", "shade"]

# From grey to full colour at one lightness: the terminal's own background is unknown, and a ramp
# from pale to deep would read backwards on half of them. Black figures keep a contrast above 7:1
# on each shade.
_SHADES = {
    0.1: Style(color="#000000", bgcolor="#aea59f"),
    0.2: Style(color="#000000", bgcolor="#c09e8a"),
    0.4: Style(color="#000000", bgcolor="#d29571"),
    0.6: Style(color="#000000", bgcolor="#e48a50"),
    0.8: Style(color="#000000", bgcolor="#f57c1f"),
}


def shade(weight: float) -> Style:
    """Style of a cell that holds a weight: the more weight, the more colour; none below 0.1.

    >>> shade(0.01).bgcolor is None, shade(0.5) == shade(0.59)
    (True, True)
    """
    style = Style.null()
    for least, candidate in _SHADES.items():
        if weight >= least:
            style = candidate
    return style


def legend() -> Text:
    """The scale of the shades, its steps in figures."""
    text = Text("shade: ", style="dim")
    for least, style in _SHADES.items():
        text.append(f" {least:g} ", style)
    return text.append(" and above", "dim")
