"""Widgets: tables of a page that its reader may change."""

from __future__ import annotations

__all__ = ["WidgetError", "widget"]


class WidgetError(ValueError):
    """A comment that names no widget, or numbers that its page does not print."""


def widget(_settings: str, _text: str) -> str:
    """Write the place where a widget starts."""
    return ""
