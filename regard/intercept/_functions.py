"""Monkeypatches library functions inside a block, wherever references to them are held.

After ``from flash_attn import flash_attn_func`` a model holds a reference to the function itself,
as closures, attributes and compiled functions do. So instead of a name, the function's code object
is replaced, and restored after the last block of all threads. On a thread without a block the
replacement calls the original code.
"""

from __future__ import annotations

import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from regard.intercept._imports import forget, when_loaded

Handler = Callable[[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Called with the function's path, the original function, and the arguments."""

_PLACE = "what replaces the function"
# Code that runs in any module's globals, and so without names of its own: what it calls takes the
# place of the constant. A lambda, since type checkers wrap functions at run time.
_CALL: CodeType = (
    lambda *args, **kwargs: "what replaces the function".called(args, kwargs)  # type: ignore[attr-defined]
).__code__

_this_thread = threading.local()
_lock = threading.RLock()
_blocks: list[FunctionCalls] = []
_active: list[_Replaced] = []


@dataclass(frozen=True, eq=False)
class _Replaced:
    path: str
    function: FunctionType
    code: CodeType
    own: FunctionType
    """Copy of the original function."""
    names_signature: bool
    """Whether ``__signature__`` was set on the function."""

    def called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Handle a call."""
        handlers: Mapping[str, Handler] | None = getattr(_this_thread, "handlers", None)
        if handlers is None:
            return self.own(*args, **kwargs)
        return handlers[self.path](self.path, self.own, args, kwargs)

    def restore(self) -> None:
        self.function.__code__ = self.code
        if self.names_signature:
            del self.function.__signature__  # type: ignore[attr-defined]


class FunctionCalls:
    """Replaces functions on one thread, from `start` to `stop`.

    Args:
        handlers: the replacements by path, such as ``"flash_attn.flash_attn_func"``, or
            ``"module:Class.name"`` for a method.
    """

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._pending: dict[str, list[str]] = {}
        """Paths of functions not yet replaced, by module."""
        for path in handlers:
            self._pending.setdefault(_module_and_name(path)[0], []).append(path)
        self._handlers = handlers

    def start(self) -> None:
        """Replace the functions of all modules that are loaded, and of others once they are."""
        _this_thread.handlers = self._handlers
        with _lock:
            _blocks.append(self)
        for module in list(self._pending):
            when_loaded(module, self._replace_loaded)

    @contextmanager
    def on_this_thread(self) -> Iterator[None]:
        """Context manager that also replaces functions on the current thread."""
        _this_thread.handlers = self._handlers
        try:
            yield
        finally:
            del _this_thread.handlers

    def stop(self) -> None:
        """Restore the functions, unless another thread still needs them."""
        if getattr(_this_thread, "handlers", None) is self._handlers:  # else it is another thread
            del _this_thread.handlers
        forget(self._replace_loaded)
        with _lock:
            _blocks.remove(self)
            if not _blocks:
                while _active:
                    _active.pop().restore()

    def _replace_loaded(self) -> None:
        """Replace functions of loaded modules."""
        for module in [module for module in self._pending if module in sys.modules]:
            for path in list(self._pending[module]):
                function = _find(path)
                if function is None:
                    continue
                self._pending[module].remove(path)
                if isinstance(function, FunctionType):
                    _replace(path, function)
                else:
                    _name_unseen(path, function)
            if not self._pending[module]:
                del self._pending[module]


def _module_and_name(path: str) -> tuple[str, str]:
    module, _, name = path.partition(":") if ":" in path else path.rpartition(".")
    return module, name


def _find(path: str) -> object:
    """Return the function of a loaded module, or None if it is not defined yet."""
    module, name = _module_and_name(path)
    found: object = sys.modules[module]
    for part in name.split("."):
        found = None if found is None else vars(found).get(part)
    return found.__func__ if isinstance(found, staticmethod) else found


def _name_unseen(path: str, function: object) -> None:
    """Warn that calls of objects without replaceable code, such as partials, are not seen."""
    warnings.warn(
        f"{path} is a {type(function).__name__} and no plain Python function, so that attention "
        "calls through it are not seen; put the function that it wraps back for the time of the "
        "block",
        RuntimeWarning,
        stacklevel=2,
    )


def _replace(path: str, function: FunctionType) -> None:
    """Replace a function's code by a call of `called`."""
    with _lock:
        if any(replaced.function is function for replaced in _active):
            return
        code, attributes = function.__code__, vars(function)
        own = FunctionType(
            code,
            function.__globals__,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        own.__kwdefaults__ = function.__kwdefaults__
        names_signature = not {"__signature__", "__wrapped__"} & attributes.keys()
        if names_signature:
            function.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        replaced = _Replaced(path, function, code, own, names_signature)
        _active.append(replaced)
        function.__code__ = _CALL.replace(
            co_consts=tuple(replaced if c == _PLACE else c for c in _CALL.co_consts),
            co_name=code.co_name,
            co_freevars=code.co_freevars,  # must match the number of closure cells
        )
