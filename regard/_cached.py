"""A property that is worked out once, and that a compiler can trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar, overload

import torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

T = TypeVar("T")


class cached(Generic[T]):  # noqa: N801 - a decorator, as `functools.cached_property`
    """Keep what a property came to, as `functools.cached_property` does.

    That takes a lock in Python 3.11, at which torch.compile and torch.export give up. In a graph
    nothing is kept: what is worked out twice is one operator there.
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
        if instance is None:  # asked of the class
            return self
        result = self._function(instance)
        if not torch.compiler.is_compiling():
            instance.__dict__[self._name] = result
        return result
