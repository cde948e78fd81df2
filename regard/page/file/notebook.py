"""The page in a notebook: the widget's parts, or a picture of the heads in their place."""

from __future__ import annotations

import sys
from html import escape
from importlib.util import find_spec
from typing import TYPE_CHECKING

from regard.page.file.bundle import static, whole_page
from regard.record import Recording
from regard.record.layer import Labels
from regard.view.notebook import recording_png

if TYPE_CHECKING:
    from regard.page.subjects import Subject

__all__ = [
    "explorer_html",
    "heads_png",
    "in_notebook",
    "shows_widgets",
    "still_html",
    "widget_module",
    "widget_page",
]

_WIDGET = {name: f"widget/{name}" for name in ("request.js", "link.js", "scheme.js")}
"""Modules in place of those that need an address, and of what the notebook decides."""


def explorer_html(url: str, port: int, still: str | None, *, install: str | None) -> str:
    """The link to a running server, and below it a picture of the heads.

    Args:
        url: where it is.
        port: its port.
        still: the heads, a PNG in base64.
        install: the command that installs what shows the page without a server.
    """
    link = f'<a href="{escape(url)}" target="_blank" rel="noopener">{escape(url)}</a>'
    text = (
        f"{link}. Where the link does not open, as in VS Code, in Colab or with a Jupyter on "
        f"another machine, forward port {port} of the machine that Python runs on, such as by "
        f"ssh -N -L {port}:127.0.0.1:{port} that-machine, and open it in a browser."
    )
    if install is not None:
        command = f"<code>{escape(install)}</code>"
        text += f" After {command} the page needs no server and is shown in every notebook."
    return _over_picture(text, still)


def still_html(title: str, still: str | None) -> str:
    """What a notebook shows of a widget without a kernel.

    Args:
        title: what the page calls it.
        still: the heads, a PNG in base64.
    """
    return _over_picture(f"{escape(title)}. Run this cell to see the page.", still)


def widget_page() -> str:
    """The page for the frame of a widget, whose requests are messages to the kernel."""
    return whole_page("widget", instead=_WIDGET)


def widget_module() -> str:
    """What anywidget runs in the notebook's own page."""
    return static("widget/host.js")


def _over_picture(text: str, still: str | None) -> str:
    head = f'<div style="line-height:1.45">regard explore: {text}</div>'
    if still is None:
        return head
    style = "background:#fff;border-radius:4px;max-width:100%;height:auto"
    return f'{head}<img alt="The heads" style="{style}" src="data:image/png;base64,{still}">'


def in_notebook() -> bool:
    """Whether this Python runs in a kernel of Jupyter or marimo."""
    ipython, marimo = sys.modules.get("IPython"), sys.modules.get("marimo")
    shell = None if ipython is None else ipython.get_ipython()
    if getattr(shell, "kernel", None) is not None:
        return True
    return marimo is not None and bool(marimo.running_in_notebook())


def shows_widgets() -> bool:
    """Whether a cell can show a widget: in a notebook that has anywidget."""
    return in_notebook() and find_spec("anywidget") is not None


def heads_png(subject: Subject) -> str | None:
    """Picture of the heads of a subject's first text, a PNG in base64; None without matplotlib."""
    run = subject.run(subject.about()["runs"][0])
    return recording_png(Recording(lambda: list(run.layers), lambda: Labels((run.tokens,))))
