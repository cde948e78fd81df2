"""The function that a command line names, imported because its user says so."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from operator import attrgetter
from pathlib import Path
from typing import Any

__all__ = ["Target", "load"]


@dataclass(frozen=True)
class Target:
    """An imported function.

    Args:
        function: it.
        lines: the imports that make it the name ``attend``.
        versions: of the distributions that brought it; empty for a file.
    """

    function: Callable[..., Any]
    lines: Sequence[str]
    versions: dict[str, str]


def load(name: str) -> Target:
    """Import ``package.module:function`` or ``path/to/file.py:function``; this runs their code.

    Raises:
        ValueError: if the name has another form, or names nothing; if the module cannot be
            imported, with its own error.
        TypeError: if what it names can't be called.
    """
    place, colon, path = name.rpartition(":")
    if not (place and colon and path):
        raise ValueError(f"TARGET must be module:function or file.py:function, not {name}")
    lines: list[str] = []
    module = place
    if place.endswith(".py"):
        file = Path(place)
        if not file.is_file():
            raise ValueError(f"there is no file {place}")
        module, folder = file.stem, str(file.resolve().parent)
        sys.path.insert(0, folder)
        lines = ["import sys", f"sys.path.insert(0, {folder!r})"]
    try:
        found = import_module(module)
    except Exception as error:  # whatever the module raises
        raise ValueError(f"{place} can't be imported: {type(error).__name__}: {error}") from error
    if lines and Path(found.__file__ or "").resolve() != Path(place).resolve():
        raise ValueError(f"{place} has the name of a module that is loaded already; rename it")
    try:
        function = attrgetter(path)(found)
    except AttributeError as error:
        raise ValueError(f"{place} has no {path}") from error
    if not callable(function):
        raise TypeError(f"{name} can't be called: it is of type {type(function).__name__}")
    first, _, rest = path.partition(".")
    lines.append(f"from {module} import {first}" + ("" if rest else " as attend"))
    if rest:
        lines.append(f"attend = {path}")
    return Target(function, lines, {} if place.endswith(".py") else _versions(module))


def _versions(module: str) -> dict[str, str]:
    names = metadata.packages_distributions().get(module.partition(".")[0], ())
    return {name: metadata.version(name) for name in sorted({*names})}
