"""Context managers made of generators, whose blocks are entered once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, _GeneratorContextManager
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from regard.errors import Error

P = ParamSpec("P")
T = TypeVar("T")


def block(
    call: str,
) -> Callable[[Callable[P, Iterator[T]]], Callable[P, AbstractContextManager[T]]]:
    """Make a context manager of a generator, as `contextlib.contextmanager` does.

    Args:
        call: how a block is made, for the error of one that is entered again.

    Example:
        >>> @block("numbers()")
        ... def numbers():
        ...     yield 3
        >>> once = numbers()
        >>> with once as number:
        ...     print(number)
        3
        >>> with once:
        ...     pass
        Traceback (most recent call last):
        ...
        regard.errors.Error: a block is entered once, and this one was before; call numbers() again
    """

    def decorate(function: Callable[P, Iterator[T]]) -> Callable[P, AbstractContextManager[T]]:
        @wraps(function)
        def make(*args: P.args, **options: P.kwargs) -> AbstractContextManager[T]:
            made = _Block(cast("Any", function), args, options)
            made.call = call
            return made

        return make

    return decorate


class _Block(_GeneratorContextManager[Any]):
    """What `contextlib` makes; its own error of a second time names an attribute of its own."""

    call = ""
    _entered = False

    def __enter__(self) -> Any:
        if self._entered:
            raise Error(f"a block is entered once, and this one was before; call {self.call} again")
        self._entered = True
        return super().__enter__()

    def _recreate_cm(self) -> _Block:
        again: _Block = super()._recreate_cm()
        again.call = self.call
        return again
