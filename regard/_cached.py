"""A property that is computed once, and that a compiler can trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Self, TypeVar, overload

import torch

T = TypeVar("T")


class cached(Generic[T]):  # noqa: N801 - a decorator, as `functools.cached_property`
    """Keep a property's value, as `functools.cached_property` does.

    That takes a lock in Python 3.11, which torch.compile and torch.export refuse. In a graph
    nothing is kept: an expression that occurs twice is one operator there.
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
