"""Weights as background colours, readable in dark and light terminals."""

from __future__ import annotations

from rich.style import Style
from rich.text import Text

__all__ = ["legend", "shade"]

# From grey to full colour at constant lightness: the terminal's background is unknown, and a ramp
# from light to dark would look inverted on dark ones. Black digits have a contrast above 7:1 on
# each colour.
_SHADES = {
    0.1: Style(color="#000000", bgcolor="#aea59f"),
    0.2: Style(color="#000000", bgcolor="#c09e8a"),
    0.4: Style(color="#000000", bgcolor="#d29571"),
    0.6: Style(color="#000000", bgcolor="#e48a50"),
    0.8: Style(color="#000000", bgcolor="#f57c1f"),
}


def shade(weight: float) -> Style:
    """Return the style of a weight's cell: more colour for more weight, none below 0.1.

    >>> shade(0.01).bgcolor is None, shade(0.5) == shade(0.59)
    (True, True)
    """
    style = Style.null()
    for least, candidate in _SHADES.items():
        if weight >= least:
            style = candidate
    return style


def legend() -> Text:
    """Return a legend of the colours with their weights."""
    text = Text("shade: ", style="dim")
    for least, style in _SHADES.items():
        text.append(f" {least:g} ", style)
    return text.append(" and above", "dim")
