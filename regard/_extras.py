"""Libraries that not everyone needs: imported where they are used, named where they are missing.

The command imports this at its start, so what only an error needs is imported for the error.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CHECKOUT = Path(__file__).parents[1]


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """If a library can't be imported inside the block, add to the error how to install it.

    >>> with needing("plot"):
    ...     import no_such_library  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ModuleNotFoundError: this needs the library no_such_library: pip install ...[plot]'
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        library = (missing.name or "").partition(".")[0]
        if library == "regard":  # a module of our own, which no extra installs
            raise
        message = f"this needs the library {library}: {install(extra)}"
        raise ModuleNotFoundError(message, name=library) from None


@contextmanager
def catching_panics() -> Iterator[None]:
    """Raise a RuntimeError for a panic of a library in Rust, which is no `Exception`."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise RuntimeError(str(error)) from None


def install(extra: str) -> str:
    """Return the command that adds an extra to this installation.

    It names the origin of this installation, since pip's index need not have this package.
    """
    folder, url, options = _origin()
    if folder is not None:
        return _pip(f"{folder}[{extra}]", *options)
    return _pip(f"regard[{extra}]" + (f" @ {url}" if url else ""))


def install_experiments() -> str:
    """Return the command that installs `regard-experiments` from this package's origin."""
    folder, url, options = _origin()
    if folder is not None:
        return _pip(str(Path(folder) / "experiments"), *options)
    at = f" @ {url}#subdirectory=experiments" if url and url.startswith("git+") else ""
    return _pip("regard-experiments" + at)


def _origin() -> tuple[str | None, str | None, list[str]]:
    """Return the folder or the URL that this package was installed from, and pip's options."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        origin = distribution("regard").read_text("direct_url.json")  # PEP 610; none from an index
    except PackageNotFoundError:
        return (str(_CHECKOUT) if (_CHECKOUT / "pyproject.toml").is_file() else None), None, []
    if origin is None:
        return None, None, []
    record = json.loads(origin)
    url = record["url"]
    if "dir_info" in record:
        options = ["--editable"] if record["dir_info"].get("editable") else []
        return url2pathname(urlsplit(url).path), None, options
    if "vcs_info" in record:
        url = f"{record['vcs_info']['vcs']}+{url}@{record['vcs_info']['commit_id']}"
    return None, url, []


def _pip(requirement: str, *options: str) -> str:
    return " ".join(["pip install", *options, shlex.quote(requirement)])
