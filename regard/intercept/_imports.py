"""Calls a function as soon as a Python module has been loaded."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import cast

_lock = threading.RLock()
_waiting: dict[str, list[Callable[[], object]]] = {}


def when_loaded(name: str, function: Callable[[], object]) -> None:
    """Call a function once a module has been loaded: now, if it has, else right after its import.

    It is called on the thread that imports the module.
    """
    with _lock:
        if not _waiting:
            sys.meta_path.insert(0, _FINDER)
        _waiting.setdefault(name, []).append(function)
    if sys.modules.get(name) is not None:
        import_module(name)  # waits for another thread that is loading it
        _loaded(name)


def forget(function: Callable[[], object]) -> None:
    """Call a function no more for modules that have not been loaded."""
    with _lock:
        for name in [name for name, functions in _waiting.items() if function in functions]:
            _waiting[name].remove(function)
            if not _waiting[name]:
                _stop_waiting(name)


def _stop_waiting(name: str) -> list[Callable[[], object]]:
    functions = _waiting.pop(name, [])
    if not _waiting and _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)
    return functions


def _loaded(name: str) -> None:
    with _lock:  # another thread's block, whose function is called here, goes on when it has been
        for function in _stop_waiting(name):
            function()


class _Finder(MetaPathFinder):
    """Finds modules as the other finders do, and has their loaders tell when they are loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _waiting:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = cast("Loader", _Loader(spec.loader))
                return spec
        return None


class _Loader:
    """A module's loader, until the module is executed."""

    def __init__(self, own: Loader) -> None:
        self._own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None, "it is being imported"
        module.__spec__.loader = module.__loader__ = self._own
        self._own.exec_module(module)
        _loaded(module.__name__)


_FINDER = _Finder()
