"""HTML elements for notebooks: headings, lines and tables, in the notebook's own colours."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence

__all__ = ["heading", "line", "plain", "reason", "table", "whole"]

_TABLE = "border-collapse:collapse;margin:4px 0;border:0;color:inherit;font-size:inherit"
_CELL = "text-align:left;padding:1px 14px 1px 0;border:0;background:none;color:inherit"
_HEADING = f"{_CELL};font-weight:normal;opacity:.7"


def whole(parts: Callable[[], Iterable[str]], shown: object) -> str:
    """Join the parts; an exception is shown instead of them."""
    done: list[str] = []
    try:
        done.extend(parts())
    except Exception as error:  # noqa: BLE001 - display must not fail
        name = html.escape(plain(shown))
        done = [f"<pre>{name}</pre>{line(f'nothing to show: {reason(error)}')}"]
    return f'<div style="line-height:1.45">{"".join(done)}</div>'


def plain(shown: object) -> str:
    """Return the repr of an object, or its type if the repr fails."""
    try:
        return repr(shown)
    except Exception:  # noqa: BLE001 - likewise
        return type(shown).__name__


def reason(error: Exception) -> str:
    """Return the message of an exception."""
    return str(error) or type(error).__name__


def heading(name: str, what: str) -> str:
    """Return a heading with the name of an object and a description."""
    return f"<div><b>{html.escape(name)}</b> {html.escape(what)}</div>"


def line(text: str) -> str:
    """Return a remark."""
    return f'<div style="opacity:.7">{html.escape(text)}</div>'


def table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of texts with column names."""
    head = _row("th", _HEADING, names)
    body = "".join(_row("td", _CELL, row) for row in rows)
    return f'<table style="{_TABLE}"><thead>{head}</thead><tbody>{body}</tbody></table>'


def _row(kind: str, style: str, texts: Sequence[str]) -> str:
    cells = (f'<{kind} style="{style}">{html.escape(text)}</{kind}>' for text in texts)
    return f'<tr style="background:none">{"".join(cells)}</tr>'
