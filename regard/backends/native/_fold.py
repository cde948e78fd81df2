"""The rule for `torch.func.vmap`: the mapped dimension is folded into the batch.

Axes: N size of the mapped dimension, B batch, H query heads, L queries; b is B or 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.backends.native._arguments import Arguments

_RESULTS = ("gradient", "context", "logsumexp", "wanted")  # the backward pass takes these first
# Tensors whose batch axis may not be broadcast, as are those whose gradients are wanted.
_EACH_ITS_OWN = {"gradient", "context", "logsumexp", "query", "key", "value"}


def fold(
    call: Callable[..., Sequence[Tensor]], info: Any, dims: tuple[Any, ...], *arguments: Any
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Compute the results of an operator; a rule for `torch.library.register_vmap`.

    Args:
        call: computes the folded problem.
        info: its `batch_size` is N.
        dims: the mapped dimension of each argument, or None.
        arguments: those of the forward or the backward pass.

    Returns:
        The results, and the mapped dimension of each.
    """
    names = (*_RESULTS, *Arguments._fields)[-len(arguments) :]
    given, mapped = (dict(zip(names, each, strict=True)) for each in (arguments, dims))
    size, batch = info.batch_size, _rows(given["query"], mapped["query"])
    if given["seed"] is not None:
        results = _one_by_one(call, size, dims, arguments)
        return results, (0,) * len(results)
    wanted = [
        name for name, want in zip(Arguments._fields, given.get("wanted", ()), strict=False) if want
    ]
    each_its_own = _EACH_ITS_OWN.union(wanted)
    folded = [
        _folded(argument, mapped[name], size, batch, each=name in each_its_own)
        if isinstance(argument, torch.Tensor)
        else argument
        for name, argument in given.items()
    ]
    results = tuple(each.unflatten(0, (size, batch)) for each in call(*folded))
    if "wanted" in given:
        shared = (_rows(given[name], mapped[name]) < batch for name in wanted)
        pairs = zip(results, shared, strict=True)
        results = tuple(each.sum(1, keepdim=True) if shares else each for each, shares in pairs)
    return results, (0,) * len(results)


def _folded(tensor: Tensor, dim: int | None, size: int, batch: int, *, each: bool) -> Tensor:
    """Convert ``(b, ...)``, with a mapped dimension or not, to ``(N·B, ...)``.

    Args:
        tensor: the argument.
        dim: its mapped dimension; None if it is not mapped.
        size: N.
        batch: B.
        each: whether the batch axis must be expanded; else ``(1, ...)`` may stay as it is.
    """
    if dim is not None:
        tensor = tensor.movedim(dim, 0)
    elif len(tensor) == 1 and not each:
        return tensor
    else:
        tensor = tensor.expand(size, *tensor.shape)
    return tensor.expand(size, batch, *tensor.shape[2:]).flatten(0, 1)


def _rows(tensor: Tensor, dim: int | None) -> int:
    """Return the size of the batch axis, the first one that is not mapped."""
    return tensor.shape[1 if dim == 0 else 0]


def _one_by_one(
    call: Callable[..., Sequence[Tensor]],
    size: int,
    dims: tuple[Any, ...],
    arguments: tuple[Any, ...],
) -> tuple[Tensor, ...]:
    """Compute the problems separately: dropout depends on a weight's index in its problem."""
    results = [
        call(
            *(
                argument.select(dim, number)
                if isinstance(argument, torch.Tensor) and dim is not None
                else argument
                for argument, dim in zip(arguments, dims, strict=True)
            )
        )
        for number in range(size)
    ]
    return tuple(torch.stack(each) for each in zip(*results, strict=True))
