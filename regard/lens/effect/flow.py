"""Detects, while a model runs, which modules have side effects beyond their return values.

A module may also mutate state that later modules read: a list or a cache among its arguments, an
attribute, or anything in a hook. A run that skips it would miss that.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from regard._tensors import version


class ModuleCall:
    """One call of a module.

    Args:
        outer: the enclosing call.
    """

    def __init__(self, outer: ModuleCall | None) -> None:
        self.outer = outer
        self.is_over = False
        self.leaks = False
        """True if the module has side effects: another of its tensors is used later, or its output
        is mutated."""

    def contains(self, other: ModuleCall | None) -> bool:
        """Return True if the other call is this one, or was made inside it."""
        while other is not None and other is not self:
            other = other.outer
        return other is self


class Flow(TorchFunctionMode):
    """Follows tensors from the module call that created them to the functions that use them.

    Arguments and results are replaced by new views of the same memory. So a tensor that a module
    kept, be it an argument or its result, is distinct from the tensor that later modules receive.
    """

    def __init__(self) -> None:
        super().__init__()
        self._innermost: ModuleCall | None = None
        self._makers: dict[int, tuple[ModuleCall, weakref.ref[Tensor]]] = {}
        # A weak reference keeps a storage's address from being given to another one.
        self._storages: dict[int, tuple[ModuleCall | None, StorageWeakRef]] = {}
        self._returned: dict[int, list[ModuleCall]] = {}  # by storage

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        given = list(tensors_in((args, kwargs)))
        with torch._C.DisableTorchFunction():  # noqa: SLF001 - torch has no public way
            for tensor in given:
                self.read(tensor)
                self._storage(tensor, None)
            versions = [version(tensor) for tensor in given]
        result = func(*args, **kwargs)
        with torch._C.DisableTorchFunction():  # noqa: SLF001 - likewise
            for tensor, before in zip(given, versions, strict=True):
                if version(tensor) != before:
                    self._write(tensor)
            for tensor in tensors_in(result):
                if all(tensor is not other for other in given):
                    self._make(tensor, self._innermost)
                    self._storage(tensor, self._innermost)
        return result

    def call(
        self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[ModuleCall, Any]:
        """Run a module; return its `ModuleCall`, and the value to return in place of its result."""
        call = ModuleCall(self._innermost)
        args, named = self._handed_over((args, tuple(kwargs.values())), call)
        self._innermost = call
        try:
            value = forward(*args, **dict(zip(kwargs, named, strict=True)))
            returned = self._handed_over(value, call.outer)
        finally:
            call.is_over = True
            self._innermost = call.outer
        with torch._C.DisableTorchFunction():  # noqa: SLF001 - likewise
            for tensor in tensors_in(value):
                self._returned.setdefault(self._storage(tensor, call), []).append(call)
        return call, returned

    def read(self, tensor: Tensor) -> None:
        """Record that a tensor is used now."""
        maker, _ = self._makers.get(id(tensor), (None, None))
        while maker is not None and maker.is_over:
            maker.leaks = True
            maker = maker.outer

    def _write(self, tensor: Tensor) -> None:
        key = self._storage(tensor, None)
        maker, _ = self._storages.get(key, (None, None))
        call = self._innermost
        while call is not None and not call.contains(maker):
            call.leaks = True
            call = call.outer
        for returned in self._returned.get(key, ()):
            returned.leaks = True

    def _make(self, tensor: Tensor, maker: ModuleCall | None) -> None:
        key, makers = id(tensor), self._makers
        if maker is None:
            makers.pop(key, None)
            return

        def forget(_: weakref.ref[Tensor]) -> None:
            makers.pop(key, None)

        makers[key] = maker, weakref.ref(tensor, forget)

    def _storage(self, tensor: Tensor, maker: ModuleCall | None) -> int:
        """Return a key for a tensor's storage, and register the storage if it is new."""
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):  # sparse, or a batch of vmap's
            return 0
        key = int(storage._cdata)  # noqa: SLF001 - torch has no public way
        if key not in self._storages:
            self._storages[key] = maker, StorageWeakRef(storage)
        return key

    def _handed_over(self, value: Any, receiver: ModuleCall | None) -> Any:
        """Replace tensors by new views of their memory, which the receiver owns, one per tensor.

        Lists and mappings keep their identity, since both sides may mutate them.
        """
        others: dict[int, Tensor] = {}

        def other(part: Any) -> Any:
            if type(part) is tuple:
                return tuple(map(other, part))
            if type(part) is not Tensor or part.layout is not torch.strided:
                return part
            if id(part) not in others:
                self.read(part)
                others[id(part)] = alias = part.view_as(part)
                self._make(alias, receiver)
            return others[id(part)]

        with torch._C.DisableTorchFunction():  # noqa: SLF001 - likewise
            return other(value)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested tuples, lists and mappings."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_in(part)
