"""A package index of this machine alone: what a release does to PyPI is rehearsed against it.

It takes uploads as twine sends them, lists files as PEP 503 says, and yanks as PEP 592 does: a
release that is yanked is installed only by who names its version.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from email.message import Message
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

__all__ = ["PackageIndex", "serving"]


class PackageIndex:
    """The files of an index, and which versions are yanked."""

    def __init__(self) -> None:
        self.address = ""
        self._files: dict[str, dict[str, bytes]] = defaultdict(dict)
        self._yanked: dict[tuple[str, str], str] = {}

    def add(self, file: str, data: bytes) -> bool:
        """Add a file; False if the index has one of this name, which PyPI never replaces."""
        files = self._files[_project(file)]
        is_new = file not in files
        files.setdefault(file, data)
        return is_new

    def yank(self, project: str, version: str, why: str) -> None:
        """Yank a version: its files stay, and nobody gets them who does not ask for it."""
        self._yanked[project, version] = why

    def page(self, project: str) -> str | None:
        """Return the list of a project's files; None without any."""
        files = self._files.get(project)
        if not files:
            return None
        lines = []
        for name, data in sorted(files.items()):
            why = self._yanked.get((project, _version(name)))
            yanked = "" if why is None else f' data-yanked="{escape(why)}"'
            digest = hashlib.sha256(data).hexdigest()
            lines.append(f'<a href="/files/{name}#sha256={digest}"{yanked}>{name}</a><br>')
        return "<!DOCTYPE html>\n<html><body>\n" + "\n".join(lines) + "\n</body></html>\n"

    def content(self, file: str) -> bytes | None:
        """Return a file's bytes."""
        return self._files.get(_project(file), {}).get(file)


@contextmanager
def serving(files: Path) -> Iterator[PackageIndex]:
    """Serve an index on this machine that has a folder's files; uploads go to its own address.

    Args:
        files: wheels of the packages that come along.
    """
    index = PackageIndex()
    for path in sorted(files.glob("*.whl")):
        index.add(path.name, path.read_bytes())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, _, name = unquote(self.path).strip("/").partition("/")
            if kind == "simple" and (page := index.page(name)) is not None:
                self._answer(200, page.encode(), "text/html; charset=utf-8")
            elif kind == "files" and (data := index.content(name)) is not None:
                self._answer(200, data, "application/octet-stream")
            else:
                self._answer(404)

        do_HEAD = do_GET  # noqa: N815 - uv asks for the size first

        def do_POST(self) -> None:
            form = _form(self.headers, self.rfile.read(int(self.headers["Content-Length"])))
            name, data = form["content"].get_filename(), form["content"].get_payload(decode=True)
            assert name is not None, "it is a file"
            assert isinstance(data, bytes), "it is one part"
            digest = form["sha256_digest"].get_payload(decode=True)
            is_whole = digest == hashlib.sha256(data).hexdigest().encode()
            self._answer(200 if is_whole and index.add(name, data) else 400)

        def _answer(self, status: int, data: bytes = b"", kind: str = "text/plain") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        index.address = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield index
        finally:
            server.shutdown()


def _project(file: str) -> str:
    """Return the normalised name of the project of a wheel or an sdist."""
    return re.sub(r"[-_.]+", "-", file.partition("-")[0]).lower()


def _version(file: str) -> str:
    return file.removesuffix(".tar.gz").split("-")[1]


def _form(headers: Message, body: bytes) -> dict[str, Message]:
    """Return the fields of a form that is sent in parts."""
    start = f"Content-Type: {headers['Content-Type']}\r\n\r\n".encode()
    return {
        str(part.get_param("name", header="content-disposition")): part
        for part in message_from_bytes(start + body).walk()
    }
