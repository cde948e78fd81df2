"""The server: the page and its interface, on this machine alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi.responses import Response

from regard.page._guard import Guard
from regard.page._interface import interface
from regard.page._work import Work
from regard.page.file.bundle import script, static, style

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import ASGIApp

    from regard.page.subjects import Subject

__all__ = ["application"]


def application(subject: Subject, host: str = "127.0.0.1", work: Work | None = None) -> ASGIApp:
    """Make the server for a model or a recording.

    Args:
        subject: what is explored.
        host: the address it will be bound to.
        work: what computes; None makes it.
    """
    app = interface(subject, work or Work())
    # Three texts, whole: a browser would spend a second on the requests for some sixty modules.
    _serve(app, "/", static("index.html"), "text/html")
    _serve(app, "/page.css", style(), "text/css")
    _serve(app, "/page.js", script("main.js"), "text/javascript")
    return Guard(app, host)


def _serve(app: FastAPI, path: str, text: str, kind: str) -> None:
    content = text.encode()

    @app.api_route(path, methods=["GET", "HEAD"], include_in_schema=False)
    async def answer() -> Response:
        return Response(content, media_type=kind)
