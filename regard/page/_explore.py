"""The server of the page on this machine: its connections, and how it starts and ends."""

from __future__ import annotations

import asyncio
import socket
import threading
import webbrowser
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from regard._extras import install
from regard.page._guard import WILDCARDS, wildcard_of
from regard.page._interface import application
from regard.page._work import Work
from regard.page.file.notebook import explorer_html, heads_png, in_notebook, shows_widgets
from regard.page.subjects import as_subject

if TYPE_CHECKING:
    from torch import nn

    from regard.models import LanguageModel
    from regard.page._widget import ExplorerWidget
    from regard.page.subjects import Subject
    from regard.record import Recording

RECEIVING = 10.0
"""Seconds until a new connection's first byte, and from a request's first byte to its last."""


class Protocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's protocol with a timeout: uvicorn itself waits forever for half a request."""

    cycle: Any
    _timeout: asyncio.TimerHandle | None = None
    _has_begun = False
    """Whether a request has arrived in part."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the timeout of the first request."""
        super().connection_made(transport)
        self._start_timeout()

    def data_received(self, data: bytes) -> None:
        """Limit the time of a whole request: data that arrives byte by byte does not extend it."""
        if not self._has_begun:
            self._start_timeout()
        super().data_received(data)
        between = self.cycle is None or self.cycle.response_complete
        self._has_begun = between or self.cycle.more_body
        if not self._has_begun:
            self._cancel_timeout()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timeout."""
        self._cancel_timeout()
        super().connection_lost(exc)

    def _start_timeout(self) -> None:
        self._cancel_timeout()
        self._timeout = self.loop.call_later(RECEIVING, self.transport.close)

    def _cancel_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None


class _Server(uvicorn.Server):
    """A uvicorn server that cancels its computations as soon as a signal ends it."""

    def __init__(self, config: uvicorn.Config, work: Work) -> None:
        super().__init__(config)
        self._work = work

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal or `stop` ends it."""
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal later: the interrupted code may hold locks that `close` needs."""
        self._loop.call_soon_threadsafe(self._work.close)
        super().handle_exit(sig, frame)


class Explorer:
    """A server that is running; stop it with `stop`, or leave it until Python ends.

    Args:
        subject: what it shows.
        host: where it listens; the loopback, unless other machines are to see it.
        port: 0 takes one that is free.

    Raises:
        OSError: if the port is taken.
        ValueError: for a port that is not 0 to 65535.

    Example:
        >>> import torch, regard
        >>> from regard.page import Explorer, RecordingSubject
        >>> with regard.record() as recording:
        ...     _ = regard.attention(*torch.randn(3, 1, 2, 7, 4), mask=regard.causal())
        >>> server = Explorer(RecordingSubject(recording, title="a recording"))
        >>> server.start()
        >>> server.url.startswith("http://127.0.0.1:")
        True
        >>> server.stop()
    """

    def __init__(self, subject: Subject, *, host: str = "127.0.0.1", port: int = 0) -> None:
        if not 0 <= port < 2**16:
            raise ValueError(f"port must be a number from 0 to 65535, but is {port}")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # With the protocol named, asyncio disables Nagle's algorithm, by which each answer would
        # wait 40 ms for the browser to acknowledge its headers.
        self._socket = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
        except OSError as error:
            self._socket.close()
            raise OSError(
                f"{host}, port {port}, can't be listened on: {error.strerror}; give another, or "
                "port 0 for one that is free"
            ) from error
        self._socket.listen()  # a page that is opened at once waits, and is not refused
        address, self.port = self._socket.getsockname()[:2]
        self.host = wildcard_of(address) or host  # "" and 0 are all addresses too
        self._subject, self._work = subject, Work()
        config = uvicorn.Config(
            application(subject, self.host, self._work),
            log_level="error",  # requests for a websocket are not logged
            access_log=False,
            http=Protocol,
            ws="none",
            timeout_graceful_shutdown=2,  # native code can't be cancelled
        )
        self._server = _Server(config, self._work)
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Address of the page."""
        host = WILDCARDS.get(self.host, self.host)
        name = f"[{host}]" if ":" in host else host
        return f"http://{name}:{self.port}/"

    @property
    def is_everywhere(self) -> bool:
        """Whether it listens on all addresses of this machine."""
        return self.host in WILDCARDS

    def serve(self) -> None:
        """Serve until interrupted."""
        self._server.run(sockets=[self._socket])

    def start(self) -> None:
        """Serve in the background."""
        self._thread = threading.Thread(target=self.serve, name="regard explore", daemon=True)
        self._thread.start()

    @property
    def computing(self) -> bool:
        """Whether a thread computes; native code goes on after its request is cancelled."""
        return self._work.computing

    def stop(self) -> None:
        """Stop the server and cancel its computations."""
        self._work.close()
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join()
        self._socket.close()

    def __repr__(self) -> str:
        return f"Explorer({self.url})"

    def _repr_html_(self) -> str:
        hint = install("notebook") if in_notebook() and not shows_widgets() else None
        return explorer_html(self.url, self.port, heads_png(self._subject), install=hint)


def explore(
    shown: Recording | LanguageModel | nn.Module | Subject,
    text: str | None = None,
    *,
    tokenizer: Any = None,
    title: str | None = None,
    host: str | None = None,
    port: int | None = None,
    open_browser: bool = False,
) -> Explorer | ExplorerWidget:
    """Show a recording or a model as a page, from Python; in a notebook, below the cell.

    Args:
        shown: a recording, a language model as `regard.models.open` returns, a module with its
            tokenizer, or another subject.
        text: what the model reads first; None takes an example.
        tokenizer: of a module, its own.
        title: what the page calls it; None takes "recording" or "model".
        host: where to listen; the loopback, unless other machines are to see it.
        port: None and 0 take one that is free.
        open_browser: open the page in the system's browser.

    Returns:
        In a notebook that has anywidget the page as a widget, which needs no server. Elsewhere, and
        where ``host``, ``port`` or ``open_browser`` asks for a server, the running server, whose
        `url` is the page's address.

    Raises:
        PageError: if the recording holds nothing that a page could show, or the text can't be
            read by the model.
        OSError: if the port is taken.
        ValueError: for a port that is not 0 to 65535.
        TypeError: for a module without a tokenizer, and a recording with a tokenizer or a text.

    Example:
        >>> import regard
        >>> page = regard.explore(regard.models.open(), "The cat sat.", port=0)
        >>> page.url.startswith("http://127.0.0.1:")
        True
        >>> page.stop()
    """
    subject = as_subject(shown, tokenizer=tokenizer, text=text, title=title)
    if host is None and port is None and not open_browser and shows_widgets():
        from regard.page._widget import ExplorerWidget

        return ExplorerWidget(subject)
    explorer = Explorer(subject, host=host or "127.0.0.1", port=port or 0)
    explorer.start()
    if open_browser:
        webbrowser.open(explorer.url)
    return explorer
