"""Indirection from lower rooms to the renderers of `regard.view`.

`regard.view` imports the rooms below it, and they must not import it. On import, the package
registers a function that finds a renderer by name; it is called when something is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Find = Callable[[str], Callable[..., Any]]

_finders: list[Find] = []


def find_with(find: Find) -> None:
    """Register the function that finds a renderer by its name."""
    _finders[:] = [find]


def show(name: str, *args: Any, **options: Any) -> Any:
    """Call a renderer of `regard.view`, such as ``plot_pattern``."""
    (find,) = _finders
    return find(name)(*args, **options)
