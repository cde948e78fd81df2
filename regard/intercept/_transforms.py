"""Calls under the transforms of `torch.func`, whose tensors stand for others.

`grad`, `vjp` and `jvp` wrap each tensor and end what is wrapped with themselves; what is inside has
the same numbers, and is kept in its place. `vmap` hides an axis of a batch.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor, nn

from regard._contexts import is_batch, unwrapped
from regard.intercept._call import Call


def outside_transforms(call: Call) -> Call:
    """The call with the tensors that its own stand for."""
    tensors: list[Tensor] = []
    call = _unwrapped(call, tensors)
    return call.with_(batched=any(map(is_batch, tensors)))


def _unwrapped(value: Any, found: list[Tensor]) -> Any:
    """Unwrap all tensors of a value, and add them to those that were found."""
    if isinstance(value, Tensor):
        found.append(unwrapped(value))
        return found[-1]
    if isinstance(value, tuple):
        return tuple(_unwrapped(part, found) for part in value)
    if not is_dataclass(value) or isinstance(value, nn.Module):
        return value
    copy = object.__new__(type(value))  # nothing is checked again: it was
    vars(copy).update(
        {field.name: _unwrapped(getattr(value, field.name), found) for field in fields(value)}
    )
    return copy
