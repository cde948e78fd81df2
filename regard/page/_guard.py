"""Which requests are answered: those of this machine's own pages.

A page of another site can send requests to a server on this machine. It can't choose their Host
and Origin: a name that was rebound to 127.0.0.1 stays in the Host, and another site in the Origin.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_HEADERS = {
    b"content-security-policy": POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
}
WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what the user may ask for
"""Addresses that stand for all of a machine's, and the loopback address that reaches it."""
_HOST = re.compile(r"(\[[\w.%]*:[\w:.%]*\]|[\w.-]+)(?::(\d{1,5}))?", re.ASCII)
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class Guard:
    """Middleware: refuses foreign hosts and origins, and adds a strict policy to every answer.

    Args:
        app: the application that answers.
        host: the name that the server was bound to, allowed beside those of the loopback.
    """

    def __init__(self, app: ASGIApp, host: str) -> None:
        self._app = app
        self._hosts = _LOOPBACK | {host.lower()}
        # Bound to a wildcard, it has many addresses; a number can't be rebound as a name can.
        self._any_number = host in WILDCARDS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refused = self._refusal(scope)
        if refused is not None:
            await _refuse(send, refused)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message["headers"]}
                added = [(name, value) for name, value in _HEADERS.items() if name not in names]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        await self._app(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> str | None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "")
        if not self._is_own(_name(host)):
            return f"the host {host!r} is not this server's; open the address that it printed"
        origin = headers.get(b"origin")
        if origin is not None and origin != f"{scope['scheme']}://{host}":
            return f"requests from {origin!r} are refused; open the page of this server"
        site = headers.get(b"sec-fetch-site", "same-origin")
        opened = headers.get(b"sec-fetch-mode") == "navigate" and scope["path"] == "/"
        if site not in ("same-origin", "none") and not opened:
            return "requests from other sites are refused; open the page of this server"
        return None

    def _is_own(self, name: str | None) -> bool:
        if name is None or name in self._hosts:
            return name is not None
        return self._any_number and _is_number(name)


def wildcard_of(address: str) -> str | None:
    """The one of `WILDCARDS` that a socket is bound to; None if it is bound to one address."""
    number = ip_address(address)
    mapped = getattr(number, "ipv4_mapped", None)  # an IPv4 address as one of IPv6
    text = str(mapped or number)
    return text if text in WILDCARDS else None


def _is_number(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _name(host: str) -> str | None:
    """Host name of a Host header, without the port; None if the header is malformed."""
    found = _HOST.fullmatch(host)
    if found is None or int(found[2] or 0) >= 2**16:
        return None
    return found[1].strip("[]").lower()


async def _refuse(send: Send, why: str) -> None:
    body = why.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), *_HEADERS.items()]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body})
