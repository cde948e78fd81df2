"""Rules for `torch.func.vmap`: the mapped dimension is folded into the batch.

Axes: N size of the mapped dimension, B batch, H query heads, L queries; b is B or 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.backends.native._arguments import Arguments

_EACH_ITS_OWN = ("query", "key", "value")  # tensors whose batch axis may not be broadcast


@dataclass(frozen=True)
class _Fold:
    """Folds the mapped dimension into the batch."""

    size: int
    """N."""
    batch: int
    """B."""

    def __call__(self, tensor: Tensor, dim: int | None, *, each: bool) -> Tensor:
        """Convert ``(b, ...)``, with a mapped dimension or not, to ``(N·B, ...)``.

        Args:
            tensor: the argument.
            dim: its mapped dimension; None if it is not mapped.
            each: whether the batch axis must be expanded; else ``(1, ...)`` may stay as it is.
        """
        if dim is not None:
            tensor = tensor.movedim(dim, 0)
        elif len(tensor) == 1 and not each:
            return tensor
        else:
            tensor = tensor.expand(self.size, *tensor.shape)
        return tensor.expand(self.size, self.batch, *tensor.shape[2:]).flatten(0, 1)

    def unfolded(self, tensor: Tensor) -> Tensor:
        """Convert ``(N·B, ...)`` to ``(N, B, ...)``."""
        return tensor.unflatten(0, (self.size, self.batch))


def fold_forward(
    call: Callable[..., tuple[Tensor, Tensor]],
    info: Any,
    dims: tuple[Any, ...],
    *arguments: Any,
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Compute context and logsumexp; a rule for `torch.library.register_vmap`.

    Args:
        call: computes the folded problem.
        info: its `batch_size` is N.
        dims: the mapped dimension of each argument, or None.
        arguments: see `Arguments`.

    Returns:
        The results, and the mapped dimension of each.
    """
    inputs = Arguments(*arguments)
    mapped = dict(zip(Arguments._fields, dims, strict=True))
    if inputs.seed is not None:
        return _one_by_one(call, info.batch_size, dims, arguments)
    fold = _Fold(info.batch_size, _rows(inputs.query, mapped["query"]))
    results = call(*_folded(fold, inputs, mapped, _EACH_ITS_OWN))
    return tuple(map(fold.unfolded, results)), (0, 0)


def fold_backward(
    call: Callable[..., Sequence[Tensor]],
    info: Any,
    dims: tuple[Any, ...],
    gradient: Tensor,
    context: Tensor,
    logsumexp: Tensor,
    wanted: list[bool],
    *arguments: Any,
) -> tuple[list[Tensor], list[int]]:
    """Compute the gradients, likewise."""
    inputs = Arguments(*arguments)
    mapped = dict(zip(Arguments._fields, dims[4:], strict=True))
    if inputs.seed is not None:
        every = (gradient, context, logsumexp, wanted, *arguments)
        results, places = _one_by_one(call, info.batch_size, dims, every)
        return list(results), list(places)
    fold = _Fold(info.batch_size, _rows(inputs.query, mapped["query"]))
    names = [name for name, want in zip(Arguments._fields, wanted, strict=True) if want]
    rows = (
        fold(tensor, dim, each=True).contiguous()
        for tensor, dim in zip((gradient, context, logsumexp), dims, strict=False)
    )
    gradients_of_all = call(*rows, wanted, *_folded(fold, inputs, mapped, (*_EACH_ITS_OWN, *names)))
    gradients = []
    for name, each in zip(names, map(fold.unfolded, gradients_of_all), strict=True):
        shared = _rows(getattr(inputs, name), mapped[name]) < fold.batch
        gradients.append(each.sum(1, keepdim=True) if shared else each)
    return gradients, [0] * len(gradients)


def _folded(
    fold: _Fold, inputs: Arguments, mapped: dict[str, Any], each: tuple[str, ...]
) -> Arguments:
    tensors: dict[str, Any] = {
        name: fold(tensor, mapped[name], each=name in each)
        for name, tensor in inputs._asdict().items()
        if isinstance(tensor, torch.Tensor)
    }
    return inputs._replace(**tensors)


def _rows(tensor: Tensor, dim: int | None) -> int:
    """Return the size of the batch axis, the first one that is not mapped."""
    return tensor.shape[1 if dim == 0 else 0]


def _one_by_one(
    call: Callable[..., Sequence[Tensor]],
    size: int,
    dims: tuple[Any, ...],
    arguments: tuple[Any, ...],
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
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
    stacked = tuple(torch.stack(each) for each in zip(*results, strict=True))
    return stacked, (0,) * len(stacked)
