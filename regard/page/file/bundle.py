"""The page's own modules in one script.

A page that is opened from a file, or shown in a notebook, can't load modules; from a server, one
request for each of them takes longer than all that the page asks for first. So each module
becomes a function that gives what it exports, called once, after those that it imports. This reads
the modules of `regard/page/static` and no others: one statement a line, named exports, no
cycles; of another's, a list of exports at its end. What it does not understand is an error.
"""

from __future__ import annotations

import functools
import html
import json
import posixpath
import re
import zlib
from base64 import b64encode, b85encode
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

__all__ = [
    "deflated",
    "embedded",
    "kernels",
    "module",
    "policy",
    "script",
    "static",
    "static_folder",
    "style",
    "whole_page",
]

_FOLDER = Path(__file__).parents[1] / "static"

_STYLES = ("page.css", "panels.css", "changes.css", "opening.css", "guide.css")
_LINKED = re.compile(
    r'^(?:<link rel="stylesheet".*|<script type="module".*|<!--.*-->)\n',
    re.MULTILINE,
)
_IMPORT = re.compile(
    r'^import (?:\* as (?P<whole>\w+)|\{(?P<names>[^}]*)\}) from "(?P<path>\.[^"]+)";$',
    re.MULTILINE,
)
_EXPORT = re.compile(
    r"^export (?=(?:async )?(?:const|function\*?|class) (?P<name>\w+))", re.MULTILINE
)
# As a minified library ends.
_EXPORTS_AT_END = re.compile(r"\bexport\{(?P<pairs>[\w$, ]+)\};\s*\Z")
# Types, and comments on lines of their own, are for those who read the modules.
_COMMENT = re.compile(
    r"^[ \t]*(?://.*|/\*(?:(?!\*/)[\s\S])*\*/)[ \t]*\n|/\*\* @type (?:(?!\*/)[\s\S])*\*/\s*",
    re.MULTILINE,
)
_UNREAD = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


def static(name: str) -> str:
    """Read a file of the page, such as ``page.css``."""
    return (_FOLDER / name).read_text("utf-8")


def static_folder() -> Path:
    """The folder of the page's files."""
    return _FOLDER


def style() -> str:
    """Give the style of the page."""
    return "".join(static(name) for name in _STYLES)


def whole_page(
    kind: str,
    *,
    instead: Mapping[str, str],
    data: str = "",
    worker: bool = False,
    beside: bool = False,
) -> str:
    """Give the page with its style and script inside it; it may reach nothing outside.

    Args:
        kind: the class of its body.
        instead: names of modules, and of those that stand in for them.
        data: script elements that no browser runs.
        worker: whether the page may start a worker from a text that it holds.
        beside: whether it may fetch what lies beside it.
    """
    css, code = style(), script("main.js", instead=instead)
    meta = html.escape(policy([css], [code], worker=worker, beside=beside))
    head = f'<meta http-equiv="Content-Security-Policy" content="{meta}">\n<style>{css}</style>\n'
    page = _LINKED.sub("", static("index.html"))
    page = page.replace("<body>", f'<body class="{kind}">')
    page = page.replace('<meta charset="utf-8">\n', f'<meta charset="utf-8">\n{head}')
    return page.replace("</body>", f'{data}<script type="module">{code}</script>\n</body>')


def script(
    entry: str, *, instead: Mapping[str, str] | None = None, folder: Path | None = None
) -> str:
    """Put a module and all that it imports into one script.

    Args:
        entry: the module's name, such as ``main.js``.
        instead: names of modules, and of those that stand in for them.
        folder: where the modules lie, if they are not the page's.

    Raises:
        ValueError: for a module that this can't read, or modules that import each other.
    """
    if folder is None:
        return _own(_FOLDER, entry, tuple(sorted((instead or {}).items())))
    return _joined(entry, instead or {}, folder)


@functools.cache
def _own(folder: Path, entry: str, instead: tuple[tuple[str, str], ...]) -> str:
    """Put the page's own modules together, once: they stay as they are while a process runs."""
    return _joined(entry, dict(instead), folder)


def _joined(entry: str, instead: Mapping[str, str], folder: Path) -> str:
    return "\n".join(_modules(entry, instead, folder).values())


def embedded(content: object, *, ascii_only: bool = True) -> str:
    """Write JSON that may stand inside a script element: no < and no > is left to end it.

    Args:
        content: what `json` can write.
        ascii_only: False leaves letters as they are, half as long where they are Chinese.
    """
    text = json.dumps(content, ensure_ascii=ascii_only, separators=(",", ":"), allow_nan=False)
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


@functools.cache
def kernels() -> str:
    """Give the script element that holds the kernels, as WebAssembly.

    Raises:
        FileNotFoundError: they are not built.
    """
    text = deflated([module("kernels.wasm")], strategy=zlib.Z_DEFAULT_STRATEGY)
    return f'<script type="text/plain" id="kernels">{text}</script>\n'


def module(name: str) -> bytes:
    """Read kernels that are compiled to WebAssembly.

    Raises:
        FileNotFoundError: they are not built.
    """
    path = _FOLDER / name
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing: install regard again, or build it in a checkout by "
            "`pip install ziglang && python tools/wasm.py`"
        )
    return path.read_bytes()


def deflated(parts: Iterable[bytes], *, strategy: int = zlib.Z_RLE) -> str:
    """Compress bytes and write them as text that may stand inside a script element.

    In base 85, a sixteenth shorter than in base 64, with a point for the sign that could begin a
    tag; `offline/bytes.js` reads it.
    """
    # Numbers hold nothing that comes twice: searching for it would take most of the time.
    packer = zlib.compressobj(level=9, strategy=strategy)
    data = b"".join([*map(packer.compress, parts), packer.flush()])
    return b85encode(data).decode().replace("<", ".")


def policy(
    styles: Sequence[str], scripts: Sequence[str], *, worker: bool = False, beside: bool = False
) -> str:
    """Allow nothing from outside, and inside nothing but these very texts.

    A worker is made from a text of the page: no hash can name it, but nothing else is allowed.
    WebAssembly is allowed, which scripts alone can start. What lies beside a page comes from its
    own origin, a service worker included.
    """
    workers = "; worker-src blob:" if worker else ""
    if beside:
        workers += " 'self'; connect-src 'self'"
    return (
        f"default-src 'none'; img-src data: blob:; style-src {_hashes(styles)}; "
        f"script-src {_hashes(scripts)} 'wasm-unsafe-eval'; base-uri 'none'; form-action 'none'"
        f"{workers}"
    )


def _hashes(texts: Sequence[str]) -> str:
    digests = (sha256(text.encode()).digest() for text in texts)
    return " ".join(f"'sha256-{b64encode(digest).decode()}'" for digest in digests)


def _modules(entry: str, instead: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Write down a module after those that it imports, by name."""
    done: dict[str, str] = {}
    _add(entry, instead, folder, done, ())
    return done


def _add(
    name: str,
    instead: Mapping[str, str],
    folder: Path,
    done: dict[str, str],
    above: tuple[str, ...],
) -> None:
    """Write a module down after those that it imports."""
    name = instead.get(name, name)
    if name in above:
        raise ValueError(f"{' imports '.join([*above, name])}: modules must not import each other")
    if name in done:
        return
    text = (folder / name).read_text("utf-8")
    if "</script" in text or "<!--" in text:
        raise ValueError(f"{name} holds what would end a script element; write it in two parts")

    def bound(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(name), match["path"]))
        path = instead.get(path, path)
        _add(path, instead, folder, done, (*above, name))
        if match["whole"]:
            return f"const {match['whole']} = {_variable(path)};"
        names = [part.strip() for part in match["names"].split(",") if part.strip()]
        exported = _exports((folder / path).read_text("utf-8"))
        missing = {part.split(" as ")[0] for part in names} - exported.keys()
        if missing:
            raise ValueError(f"{name} imports {', '.join(sorted(missing))}, not in {path}")
        return f"const {{ {', '.join(names).replace(' as ', ': ')} }} = {_variable(path)};"

    exports = ", ".join(
        one if own == one else f"{one}: {own}" for one, own in sorted(_exports(text).items())
    )
    text = _EXPORTS_AT_END.sub("\n", _EXPORT.sub("", _IMPORT.sub(bound, text)))
    text = _COMMENT.sub("", text)
    unread = _UNREAD.search(text)
    if unread is not None:
        raise ValueError(f"{name}: {unread[0]!r} is not an import or export that can be bundled")
    done[name] = (
        f"/* {name} */\nconst {_variable(name)} = (() => {{\n{text}return {{ {exports} }};\n}})();"
    )


def _exports(text: str) -> dict[str, str]:
    """The names that a module exports, and what each is called inside."""
    listed = _EXPORTS_AT_END.search(text)
    pairs = [pair.split(" as ") for pair in listed["pairs"].split(",")] if listed else []
    return {pair[-1]: pair[0] for pair in pairs} | {
        match["name"]: match["name"] for match in _EXPORT.finditer(text)
    }


def _variable(name: str) -> str:
    return "module_" + re.sub(r"\W", "_", name.removesuffix(".js"))
