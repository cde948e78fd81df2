"""Decorators: a context manager for one use, and a cached property that can be traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, _GeneratorContextManager
from functools import wraps
from typing import Any, Generic, ParamSpec, Self, TypeVar, cast, overload

import torch

from regard.errors import Error

P = ParamSpec("P")
T = TypeVar("T")


def block(
    call: str,
) -> Callable[[Callable[P, Iterator[T]]], Callable[P, AbstractContextManager[T]]]:
    """Turn a generator into a context manager that can be entered once.

    Args:
        call: how a new one is made, for the error when it is entered again.

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
    """Context manager of a generator with a clear error when it is entered a second time."""

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


class cached(Generic[T]):  # noqa: N801 - a decorator, as `functools.cached_property`
    """Cache a property's value, as `functools.cached_property` does.

    That one takes a lock in Python 3.11, which torch.compile and torch.export refuse. While a
    graph is traced nothing is cached; the compiler merges common subexpressions.
    """

    def __init__(self, function: Callable[..., T]) -> None:
        self._function = function
        self._name = function.__name__
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> Self | T:
        if instance is None:
            return self
        result = self._function(instance)
        if not torch.compiler.is_compiling():
            instance.__dict__[self._name] = result
        return result
