"""The page in a notebook: drawings over data that lies in a frame, and a running explorer's page.

A frame has no address, may reach nothing and is kept apart from the notebook's page. Where
scripts do not run it stays clear, so that the still picture below it is seen; where frames are left
out, as on GitHub, that picture is all there is.

Axes: N pictures.
"""

from __future__ import annotations

import re
from html import escape
from typing import Any

import torch
from torch import Tensor

from regard._shapes import Float
from regard.page.bundle import deflated, embedded, policy, script, static, whole_page

__all__ = ["explorer_html", "fallback_html", "frame", "numbers", "widget_module", "widget_page"]

_DECADES = 7
"""What is fainter by so many powers of ten than a picture's greatest weight is written as 0."""

_WIDGET = {name: f"widget/{name}" for name in ("request.js", "link.js", "scheme.js")}
"""Modules in place of those that need an address, and of what the notebook decides."""
_COLOURS = re.compile(r"^:root[^{]*\{[^}]*\}", re.MULTILINE)
_HEIGHT = 900  # pixels
_FRAME = f'title="regard explore" allow="clipboard-write" width="100%" height="{_HEIGHT}"'
_SCHEME = re.compile(r"\s*color-scheme:[^;]*;")  # with one, a frame is not clear


def frame(
    module: str, content: dict[str, Any], pictures: str, *, still: str, height: int, title: str
) -> str:
    """Put a module of the page and its data into a frame over a still picture.

    Args:
        module: such as ``notebook/pattern.js``.
        content: what it shows, beside the pictures' numbers.
        pictures: those, as `numbers` gives them.
        still: HTML of the picture below.
        height: in pixels.
        title: what a screen reader calls it.
    """
    code = script(module)
    colours = _COLOURS.findall(static("page.css"))
    style = _SCHEME.sub("", "\n".join(colours)) + static("notebook/frame.css")
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy([style], [code])}">'
        f'<title></title><style>{style}</style></head><body><div id="tools"></div>'
        '<div id="field"></div><button id="theme" hidden></button>'
        f'<script type="application/json" id="content">{embedded(content)}</script>'
        f'<script type="text/plain" id="numbers">{pictures}</script>'
        f'<script type="module">{code}</script></body></html>'
    )
    return (
        f'<div style="position:relative;min-height:{height}px">{still}'
        f'<iframe sandbox="allow-scripts" title="{_attribute(title)}" srcdoc="{_attribute(page)}" '
        'style="position:absolute;left:0;top:0;width:100%;height:100%;border:0"></iframe></div>'
    )


def numbers(maps: Float[Tensor, "N r c"]) -> tuple[str, dict[str, Any]]:
    """Write pictures of weights down in two bytes a weight; and what it takes to read them."""
    flat = maps.double().flatten(1).cpu()
    most = flat.amax(dim=1, keepdim=True)
    part = (flat / most.where(most > 0, 1)).clamp_min(10.0**-_DECADES)
    codes = 1 + 65534 * (1 + part.log10() / _DECADES)
    kept = torch.where(part > 10.0**-_DECADES, codes.round(), 0).flatten().long()
    planes = [(kept >> shift & 255).to(torch.uint8).numpy().tobytes() for shift in (0, 8)]
    return deflated(planes), {"most": most.flatten().tolist(), "decades": _DECADES}


def explorer_html(url: str, port: int, report: str | None, *, install: str | None) -> str:
    """The link to a running explorer, and below it a frame with a report of it, or with its page.

    A notebook's page often comes from elsewhere than Python's machine and can't reach the server,
    or is not let in by it. So a report, where there is one, is put into the notebook itself.

    Args:
        url: where it is.
        port: its port.
        report: its report.
        install: the command that installs what shows the page without a server.
    """
    link = f'<a href="{escape(url)}" target="_blank" rel="noopener">{escape(url)}</a>'
    if report is not None:
        frame = _frame(report)
        note = "Below, a report of the page, which is part of this notebook."
    else:
        frame = f'<iframe src="{escape(url)}" {_FRAME} style="border:0"></iframe>'
        note = (
            "Where the frame below stays empty, as in VS Code, in Colab or with a Jupyter on "
            f"another machine, forward port {port} of the machine that Python runs on, such as by "
            f"ssh -N -L {port}:127.0.0.1:{port} that-machine, and open the link in a browser."
        )
    if install is not None:
        command = f"<code>{escape(install)}</code>"
        note += f" After {command} the page needs no server and is shown in every notebook."
    head = f'<div style="line-height:1.45">regard explore: {link}. {note}</div>'
    return head + frame


def _frame(report: str, style: str = "") -> str:
    """A report in a frame that may reach nothing."""
    sandbox = 'sandbox="allow-scripts allow-downloads"'
    style = f'style="border:0{style}"'
    return f'<iframe {sandbox} srcdoc="{_attribute(report)}" {_FRAME} {style}></iframe>'


def fallback_html(title: str, report: str | None, still: str | None) -> str:
    """What a notebook shows of a widget without a kernel: a report, or at least a picture.

    Args:
        title: what the page calls it.
        report: its report.
        still: the heads, a PNG in base64. The report covers it, so it is seen where frames are
            left out.
    """
    head = f'<div style="line-height:1.45">regard explore: {escape(title)}. '
    picture = ""
    if still is not None:
        style = "background:#fff;border-radius:4px;max-width:100%;height:auto"
        source = f"data:image/png;base64,{still}"
        picture = f'<img alt="The heads of {_attribute(title)}" style="{style}" src="{source}">'
    if report is None:
        return f"{head}Run this cell to see the page.</div>{picture}"
    over = _frame(report, ";position:absolute;left:0;top:0")
    return (
        f"{head}A report of the page; run this cell for the page itself.</div>"
        f'<div style="position:relative;min-height:{_HEIGHT}px">{picture}{over}</div>'
    )


def widget_page() -> str:
    """The page for the frame of a widget, whose requests are messages to the kernel."""
    return whole_page("widget", instead=_WIDGET)


def widget_module() -> str:
    """What anywidget runs in the notebook's own page."""
    return static("widget/host.js")


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
