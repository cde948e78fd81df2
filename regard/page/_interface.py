"""The application that answers the page's requests, by HTTP or by a notebook's messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from regard.page._errors import PageError, describe_errors
from regard.page._guard import Guard
from regard.page._routes import router
from regard.page._work import ReplacedError, Work
from regard.page.file.bundle import script, static, style
from regard.record import RecordError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from regard.page.subjects import Subject

__all__ = ["BODY", "application", "interface"]

BODY = 2**21
"""Largest body of a request, in bytes."""

_STATUS: dict[type[Exception], int] = {PageError: 422, ReplacedError: 409, RecordError: 410}


def interface(subject: Subject, work: Work) -> FastAPI:
    """Create the application that answers the page's requests, for a notebook's messages.

    Args:
        subject: the model or recording to show.
        work: the threads that compute; closed when the application shuts down.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        app.state.work.close()

    app = FastAPI(
        title="regard explore",
        summary="What every token attends to, at any length.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.subject, app.state.work = subject, work
    app.add_middleware(_BodyLimit)
    app.include_router(router)
    for kind in _STATUS:
        app.add_exception_handler(kind, _refuse_error)
    app.add_exception_handler(RequestValidationError, _refuse_request)
    app.add_exception_handler(HTTPException, _refuse_address)
    return app


async def _refuse_error(request: Request, error: Exception) -> JSONResponse:  # noqa: ARG001 - the handler's signature
    status = getattr(error, "status", _STATUS[type(error)])
    return JSONResponse({"error": str(error)}, status_code=status)


async def _refuse_address(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException), "it is registered for those"
    sentence = f"{request.method} {request.url.path}: {error.detail}"
    return JSONResponse({"error": sentence}, status_code=error.status_code, headers=error.headers)


async def _refuse_request(request: Request, error: Exception) -> JSONResponse:  # noqa: ARG001 - the handler's signature
    assert isinstance(error, RequestValidationError), "it is registered for those"
    return JSONResponse({"error": describe_errors(error.errors())}, status_code=422)


class _BodyLimit:
    """Middleware that refuses too large bodies before they are read."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sentence = f"the request is larger than {BODY:,} bytes"
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if not length.isdigit() or int(length) > BODY:
            await JSONResponse({"error": sentence}, status_code=413)(scope, receive, send)
            return
        left = BODY

        async def receive_counted() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:  # the header gave no length
                raise HTTPException(413, sentence)
            return message

        await self._app(scope, receive_counted, send)

    from regard.page.subjects import Subject


def application(subject: Subject, host: str = "127.0.0.1", work: Work | None = None) -> ASGIApp:
    """Create the application with the page itself and a guard, for an HTTP server.

    Args:
        subject: the model or recording to show.
        host: the address that the server is bound to.
        work: the threads that compute; None creates them.
    """
    app = interface(subject, work or Work())
    # One file each: a browser would spend a second requesting some sixty modules.
    _serve(app, "/", static("index.html"), "text/html")
    _serve(app, "/page.css", style(), "text/css")
    _serve(app, "/page.js", script("main.js"), "text/javascript")
    return Guard(app, host)


def _serve(app: FastAPI, path: str, text: str, kind: str) -> None:
    content = text.encode()

    @app.api_route(path, methods=["GET", "HEAD"], include_in_schema=False)
    async def answer() -> Response:
        return Response(content, media_type=kind)
