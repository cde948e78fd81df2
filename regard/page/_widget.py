"""The page as a widget of a notebook, whose requests are messages to the kernel.

A request is one message, with a number that its page chooses::

    {"page": "k3x9", "id": 7, "method": "GET", "path": "/api/about", "headers": {…}, "body": null}

The answer is one message or several, each with a part of the body as its buffer::

    {"page": "k3x9", "id": 7, "status": 200, "headers": {…}, "more": false}

``more`` says whether another follows; of these, only the first has status and headers. As long as
a request takes, ``{"page": …, "id": 7, "pending": true}`` says each second that the kernel is
there, and ``{"page": …, "id": 7, "cancel": true}`` cancels the request.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import unquote

from fastapi.responses import HTMLResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from regard._extras import needing
from regard.page._errors import NAME, describe_errors
from regard.page._interface import BODY, interface
from regard.page._work import Work
from regard.page.file.notebook import heads_png, still_html, widget_module, widget_page

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Scope

    from regard.page.subjects import Subject

PENDING = 1.0
"""Seconds between two messages that a request is being answered."""
OPEN = 256
"""Largest number of open requests."""
_PATH, _HEADER, _NAME = 2**14, 256, 64  # most characters


class _Address(BaseModel):
    """The page and the request that a message belongs to."""

    model_config = ConfigDict(strict=True, extra="forbid")
    page: Annotated[str, Field(max_length=_NAME, pattern=NAME)]
    id: Annotated[int, Field(ge=0, le=2**53)]

    @property
    def name(self) -> tuple[str, int]:
        """Key of the request among the open ones."""
        return self.page, self.id

    @property
    def address(self) -> dict[str, Any]:
        """Fields that every answer repeats."""
        return {"page": self.page, "id": self.id}


class _Cancel(_Address):
    cancel: Literal[True]


class _Request(_Address):
    method: Literal["GET", "POST"]
    path: Annotated[str, Field(max_length=_PATH)]
    headers: dict[
        Literal["X-Client", "X-View", "Content-Type"], Annotated[str, Field(max_length=_HEADER)]
    ] = Field(default_factory=dict)
    body: Annotated[str, Field(max_length=BODY)] | None = None

    def scope(self) -> Scope:
        """The request as an ASGI scope."""
        path, _, query = self.path.partition("?")
        headers = [(name.lower(), value) for name, value in self.headers.items()]
        headers.append(("content-length", str(len(self.data))))
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in headers],
            "client": None,
            "server": ("notebook", None),
        }

    @property
    def data(self) -> bytes:
        """Its body as bytes."""
        return (self.body or "").encode()


class Messages:
    """Answers requests that come as messages, in a thread of its own.

    A kernel delivers messages in the thread that runs cells, where nothing is computed here.

    Args:
        app: the application that answers them.
        send: sends a message and its buffers; called in the thread of this object.
    """

    def __init__(self, app: ASGIApp, send: Callable[[dict[str, Any], list[bytes]], None]) -> None:
        self._app, self._send = app, send
        # By page and number; an event is set once the request is cancelled.
        self._open: dict[tuple[str, int], asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="regard messages", daemon=True)
        self._thread.start()

    def receive(self, content: object) -> None:
        """Handle a message of a page: a request or a cancellation; others are refused."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._handle, content)

    def close(self) -> None:
        """Stop the thread; open requests get no answer."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _handle(self, content: object) -> None:
        try:
            if isinstance(content, dict) and "cancel" in content:
                self._cancel(_Cancel.model_validate(content))
            else:
                self._begin(_Request.model_validate(content))
        except ValidationError as error:
            problems = [
                {**problem, "loc": ("message", *problem["loc"])} for problem in error.errors()
            ]
            self._refuse(content, 422, describe_errors(problems))

    def _cancel(self, message: _Cancel) -> None:
        if message.name in self._open:
            self._open[message.name].set()

    def _begin(self, request: _Request) -> None:
        if request.name in self._open:
            self._refuse(request.address, 422, f"request {request.id} is open already")
        elif len(self._open) >= OPEN:
            self._refuse(request.address, 503, "too many requests are open; try again in a moment")
        else:
            self._open[request.name] = asyncio.Event()
            task = self._loop.create_task(self._answer(request))
            self._tasks.add(task)  # the loop itself keeps no task alive
            task.add_done_callback(self._tasks.discard)

    def _refuse(self, content: object, status: int, why: str) -> None:
        address = content if isinstance(content, dict) else {}
        head = {name: address.get(name) for name in ("page", "id")}
        head |= {"status": status, "headers": {"content-type": "application/json"}, "more": False}
        self._send(head, [json.dumps({"error": why}).encode()])

    async def _answer(self, request: _Request) -> None:
        """Run the application on a request, and send its answer in parts."""
        cancelled = self._open[request.name]
        pending = self._loop.create_task(self._announce(request))
        body = iter([request.data])
        start: dict[str, Any] = {}

        def end() -> None:
            pending.cancel()
            if self._open.get(request.name) is cancelled:
                del self._open[request.name]

        async def receive() -> Message:
            data = next(body, None)
            if data is not None:
                return {"type": "http.request", "body": data}
            await cancelled.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if cancelled.is_set():
                return
            if message["type"] == "http.response.start":
                headers = {name.decode(): value.decode() for name, value in message["headers"]}
                start.update(status=message["status"], headers=headers)
                return
            part, more = message.get("body", b""), message.get("more_body", False)
            if not more:  # first, since its page may use the number again once it has the answer
                end()
            self._send(request.address | start | {"more": more}, [part] if part else [])
            start.clear()

        try:
            await self._app(request.scope(), receive, send)
        finally:
            end()

    async def _announce(self, request: _Request) -> None:
        while True:
            await asyncio.sleep(PENDING)
            self._send(request.address | {"pending": True}, [])


with needing("notebook"):
    import anywidget
    import traitlets


_CHOICES = ("layer", "head", "query", "key")


class ExplorerWidget(anywidget.AnyWidget):
    """The page below a cell, without a server: the kernel answers its requests.

    It is shown where a notebook shows widgets, as JupyterLab, Colab, VS Code and marimo do. Where
    no kernel runs, as in an exported notebook, a picture of the heads is shown in its place.

    Args:
        subject: what it shows.

    Example:
        >>> import torch, regard
        >>> from regard.page import ExplorerWidget, RecordingSubject
        >>> with regard.record() as recording:
        ...     _ = regard.attention(*torch.randn(3, 1, 2, 7, 4), mask=regard.causal())
        >>> widget = ExplorerWidget(RecordingSubject(recording, title="a recording"))
        >>> widget.selection
        {'layer': None, 'head': None, 'query': None, 'key': None}
        >>> widget.close()
    """

    selection = traitlets.Dict(
        key_trait=traitlets.Enum(_CHOICES),
        value_trait=traitlets.Int(allow_none=True),
        default_value=dict.fromkeys(_CHOICES),
        read_only=True,
        help="What is chosen on the page: layer, head, query and key, as numbers, or None.",
    ).tag(sync=True)
    _esm = traitlets.Unicode().tag(sync=True)

    def __init__(self, subject: Subject) -> None:
        self._subject, self._work = subject, Work()
        app = interface(subject, self._work)
        html = widget_page()

        @app.get("/", include_in_schema=False)
        async def page() -> HTMLResponse:
            return HTMLResponse(html)

        self._messages = Messages(app, self.send)
        self._fallback: dict[str, str] | None = None
        super().__init__()
        self.on_msg(self._receive)

    @traitlets.default("_esm")
    def _host(self) -> str:
        return widget_module()

    def close(self) -> None:
        """Remove the page from the notebook, and cancel its computations."""
        self._work.close()
        self._messages.close()
        super().close()

    def _receive(self, _widget: object, content: object, _buffers: object) -> None:
        self._messages.receive(content)

    def _repr_mimebundle_(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        bundle = super()._repr_mimebundle_(**options)
        if bundle is None:
            return None
        data, metadata = bundle
        if self._fallback is None:
            still = heads_png(self._subject)
            self._fallback = {"text/html": still_html(self._subject.about()["title"], still)}
            if still is not None:
                self._fallback["image/png"] = still
        return {**data, **self._fallback}, metadata
