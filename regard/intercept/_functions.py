"""Functions of libraries, replaced for the time of a block however a model holds them.

After ``from flash_attn import flash_attn_func`` a model has the function itself, as closures,
attributes and compiled functions have. So no name is changed: the function gets other code, which
all of its holders call from then on, and its own code back after the last block of all threads. On
a thread without a block the replacement calls the function's own code.
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

from regard.errors import RecordError

Handler = Callable[[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Takes the path of a function that was called, its own code, and the arguments."""

_PATH = "the path of the function"
# Code that finds its names in any module; a lambda, since type checks at run time wrap functions.
_CALL: CodeType = (
    lambda *args, **kwargs: __import__("regard.intercept._functions", fromlist=("called",)).called(
        "the path of the function", args, kwargs
    )
).__code__

_this_thread = threading.local()
_lock = threading.RLock()
_blocks: list[FunctionCalls] = []
_replaced: dict[str, _Replaced] = {}
"""By path, also after the last block: another thread may be about to call one."""
_active: list[_Replaced] = []


@dataclass(frozen=True, eq=False)
class _Replaced:
    function: FunctionType
    code: CodeType
    own: FunctionType
    """Does what the function did."""
    names_signature: bool
    """Whether the function was given an attribute from which `inspect` takes its signature."""

    def restore(self) -> None:
        self.function.__code__ = self.code
        if self.names_signature:
            del self.function.__signature__  # type: ignore[attr-defined]


class FunctionCalls:
    """The calls that one thread makes of some functions, from `start` to `stop`.

    Args:
        handlers: what is called in their place, on this thread, by the paths of the functions, such
            as ``"flash_attn.flash_attn_func"``, and ``"module:Class.name"`` of a class.
    """

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._pending: dict[str, list[str]] = {}
        """Paths of functions, by modules."""
        for path in handlers:
            self._pending.setdefault(_module_and_name(path)[0], []).append(path)
        self._handlers = handlers

    def start(self) -> None:
        """Replace the functions of all modules that are loaded."""
        _this_thread.handlers = self._handlers
        with _lock:
            _blocks.append(self)
        self._replace_loaded()

    @contextmanager
    def on_this_thread(self) -> Iterator[None]:
        """A time in which the calls of the current thread are taken as well."""
        _this_thread.handlers = self._handlers
        try:
            yield
        finally:
            del _this_thread.handlers

    def stop(self) -> None:
        """Give the functions back; of several threads the last one does."""
        del _this_thread.handlers
        with _lock:
            _blocks.remove(self)
            if not _blocks:
                while _active:
                    _active.pop().restore()

    def see_imports(self) -> bool:
        """Replace the functions of modules that were loaded since.

        Returns:
            Whether all functions of loaded modules are replaced: one may be half loaded.

        Raises:
            RecordError: if one of them runs already, so that its call is missed.
        """
        if sys.modules.keys().isdisjoint(self._pending):  # as at nearly every call
            return True
        for code, path in self._replace_loaded():
            frame = inspect.currentframe()
            while frame is not None and frame.f_code is not code:
                frame = frame.f_back
            if frame is not None:
                raise RecordError(
                    f"{path} was imported inside the block and called before it could be seen; "
                    "import it before the block"
                )
        return sys.modules.keys().isdisjoint(self._pending)

    def _replace_loaded(self) -> list[tuple[CodeType, str]]:
        """Replace what can be by now; returns the code that the functions had, and their paths."""
        new = []
        for module in [module for module in self._pending if module in sys.modules]:
            for path in list(self._pending[module]):
                function = _find(path)
                if function is None:
                    continue
                self._pending[module].remove(path)
                if isinstance(function, FunctionType):
                    new.append((_replace(path, function), path))
                else:
                    _name_unseen(path, function)
            if not self._pending[module]:
                del self._pending[module]
        return new


def called(path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Take a call of a replaced function."""
    own = _replaced[path].own
    handlers: Mapping[str, Handler] | None = getattr(_this_thread, "handlers", None)
    return own(*args, **kwargs) if handlers is None else handlers[path](path, own, args, kwargs)


def _module_and_name(path: str) -> tuple[str, str]:
    module, _, name = path.partition(":") if ":" in path else path.rpartition(".")
    return module, name


def _find(path: str) -> object:
    """The function of a module that is loaded; None where it has none of that name yet."""
    module, name = _module_and_name(path)
    found: object = sys.modules[module]
    for part in name.split("."):
        found = vars(found).get(part)
    return found


def _name_unseen(path: str, function: object) -> None:
    """Say that calls are not seen of what has no code to replace, such as a partial function."""
    warnings.warn(
        f"{path} is a {type(function).__name__} and no plain Python function, so that attention "
        "calls through it are not seen; put the function that it wraps back for the time of the "
        "block",
        RuntimeWarning,
        stacklevel=2,
    )


def _replace(path: str, function: FunctionType) -> CodeType:
    """Give a function code that leads to `called`; returns its own."""
    with _lock:
        for replaced in _active:
            if replaced.function is function:
                return replaced.code
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
        replaced = _replaced[path] = _Replaced(function, code, own, names_signature)
        _active.append(replaced)
        function.__code__ = _CALL.replace(
            co_consts=tuple(path if c == _PATH else c for c in _CALL.co_consts),
            co_name=code.co_name,
            co_freevars=code.co_freevars,  # as many as the function has cells
        )
        return code
