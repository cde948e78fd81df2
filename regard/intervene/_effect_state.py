"""What modules may write to besides tensors: arguments, attributes, globals, random generators."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import fields
from enum import Enum
from operator import is_
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

_DEPTH = 3  # of objects in objects that are looked into
_PARTS = 1000  # of an object that are looked at: the last, where new ones are added
_CONSTANT = (
    *(type(None), bool, int, float, complex, str, bytes, Enum, slice, range),
    *(Tensor, torch.Size, torch.dtype, torch.device, torch.layout),
)
_NOT_ENTERED = (*_CONSTANT, nn.Module, ModuleType, type)
_OF_TORCH = frozenset(vars(nn.Module()))  # buffers are tensors, and hooks are looked for


def is_constant(value: Any) -> bool:
    """Whether nothing but tensors can be written to in an argument."""
    if isinstance(value, _CONSTANT):
        return True
    if isinstance(value, (tuple, frozenset)):
        return all(map(is_constant, value))
    made = getattr(value, "__dataclass_params__", None)
    if made is None or not made.frozen:
        return False
    return all(is_constant(getattr(value, field.name)) for field in fields(value))


class State:
    """What a model's modules can reach at one time, and the random generators.

    That is their attributes, the globals of the files that define them, and what their ``forward``
    was defined in.

    Args:
        model: the model.
    """

    def __init__(self, model: nn.Module) -> None:
        self._parts = list(_parts(model))  # kept, so that no new object has an old one's address
        devices = {parameter.device for parameter in model.parameters() if parameter.is_cuda}
        self._generators = [
            torch.get_rng_state(),
            *(torch.cuda.get_rng_state(device) for device in sorted(devices, key=str)),
        ]

    def is_that_of(self, other: State) -> bool:
        """Whether nothing was set, added, removed or drawn in between."""
        return (
            len(self._parts) == len(other._parts)
            and all(map(is_, self._parts, other._parts))
            and all(map(torch.equal, self._generators, other._generators))
        )


def has_hooks(model: nn.Module) -> bool:
    """Whether hooks see the calls of modules inside a model."""
    return any(
        module._forward_hooks or module._forward_pre_hooks  # noqa: SLF001 - torch has no public way
        for module in model.modules()
        if module is not model
    )


def _parts(model: nn.Module) -> Iterator[Any]:
    """All that can be reached, in order."""
    seen: set[int] = set()
    for module in model.modules():
        for name, value in vars(module).items():
            if name not in _OF_TORCH and name != "forward":
                yield from _inside(value, _DEPTH, seen)
    for kind in dict.fromkeys(map(type, model.modules())):
        if kind.__module__.partition(".")[0] == "torch":
            continue
        yield from _inside(getattr(kind, "forward", None), _DEPTH, seen)
        for name, value in vars(sys.modules.get(kind.__module__, object)).items():
            if not name.startswith("__"):
                yield from _inside(value, _DEPTH - 1, seen)


def _inside(value: Any, depth: int, seen: set[int]) -> Iterator[Any]:
    yield value
    if depth == 0 or id(value) in seen or isinstance(value, _NOT_ENTERED):
        return
    seen.add(id(value))
    for part in _contents(value)[-_PARTS:]:
        yield from _inside(part, depth - 1, seen)


def _contents(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return list(value)
    if isinstance(value, FunctionType):
        return [getattr(cell, "cell_contents", None) for cell in value.__closure__ or ()]
    return list(getattr(value, "__dict__", {}).values())
