"""Showing things without knowing who draws them.

`regard.view` imports the rooms below it, and they do not import it: on import, the package names
the function that finds what draws, which is called where something is to be shown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Find = Callable[[str], Callable[..., Any]]

_finders: list[Find] = []


def find_with(find: Find) -> None:
    """Set what finds a function that shows things, by its name."""
    _finders[:] = [find]


def show(name: str, *args: Any, **options: Any) -> Any:
    """Call a function of `regard.view` that shows a thing, such as ``plot_pattern``."""
    (find,) = _finders
    return find(name)(*args, **options)
