"""The server: the page and its interface, on this machine alone."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles

from regard.explorer._guard import Guard
from regard.explorer._interface import interface
from regard.explorer._work import Work
from regard.page.bundle import linked_page

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from regard.explorer.subjects import Subject

__all__ = ["STATIC", "application"]

STATIC = Path(str(files("regard.page").joinpath("static")))


def application(subject: Subject, host: str = "127.0.0.1", work: Work | None = None) -> ASGIApp:
    """Make the server for a model or a recording.

    Args:
        subject: what is explored.
        host: the address it will be bound to.
        work: what computes; None makes it.
    """
    app = interface(subject, work or Work())
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    html = linked_page()

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(html)

    return Guard(app, host)
