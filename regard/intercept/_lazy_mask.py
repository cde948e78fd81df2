"""A tensor subclass of shape B × 1 × L × S that stores a mask as two integers per row.

Models of `transformers` pass masks as tensors, and some compute with them. This tensor allocates no
matrix: operations materialize the boolean matrix on demand, and attention that knows the class uses
the intervals.

Axes: B batch, L queries, S keys.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from regard.errors import RecordError
from regard.intercept._recomputation import is_backward
from regard.masks import Mask

_aten = torch.ops.aten
_ARITHMETIC = frozenset(
    (
        *(_aten.add, _aten.add_, _aten.sub, _aten.sub_, _aten.rsub, _aten.mul, _aten.mul_),
        *(_aten.eq, _aten.ne, _aten.lt, _aten.le, _aten.gt, _aten.ge),
    )
)
# Operations with a numeric result that use the mask as a mask: to select, to count, or its shape.
_CHOICES = frozenset(
    (
        *(_aten.where, _aten.masked_fill, _aten.masked_fill_, _aten.masked_select),
        *(_aten.masked_scatter, _aten.masked_scatter_, _aten.index, _aten.index_put),
        *(_aten.index_put_, _aten.nonzero, _aten.sum, _aten.cumsum, _aten.count_nonzero),
        *(_aten.new_zeros, _aten.new_ones, _aten.new_full, _aten.new_empty),
        *(_aten.zeros_like, _aten.ones_like, _aten.full_like, _aten.empty_like),
    )
)


class LazyMask(torch.Tensor):
    """A boolean mask, True where a key may be seen, made from a `Mask`; or a part of one."""

    source: Mask | Tensor

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment] # noqa: SLF001

    @classmethod
    def __torch_dispatch__(  # type: ignore[override] # torch calls it without kwargs too
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Compute with the matrix, unless the operation treats it as numbers.

        A mask of "eager" attention is added to scores, with the lowest number at hidden keys. A
        boolean mask that is added would hide nothing. Slices of a mask remain masks.

        Raises:
            RecordError: if it is added, multiplied, compared, cast to numbers or written to.
        """
        operation = func.overloadpacket
        written = func._schema.is_mutable and isinstance(args[0], cls)  # noqa: SLF001 - its only name
        if written or operation in _ARITHMETIC:
            raise _refusal(operation)
        args, kwargs = tree_map_only(cls, cls.written_out, (args, kwargs or {}))
        result = func(*args, **kwargs)
        tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if operation not in _CHOICES and any(t.dtype != torch.bool for t in tensors):
            raise _refusal(operation)
        return tree_map_only(torch.Tensor, _guarded, result)

    def written_out(self) -> Tensor:
        """Return the mask as a plain tensor."""
        if isinstance(self.source, torch.Tensor):
            return self.source
        *leading, queries, keys = self.shape
        return self.source.visible(queries, keys, tuple(leading)).to(self.device)

    def rule(self, queries: int, keys: int) -> Mask | None:
        """Return the mask it was made from, if it still has that size."""
        if isinstance(self.source, torch.Tensor) or self.shape[-2:] != (queries, keys):
            return None
        return self.source

    def __repr__(self) -> str:  # type: ignore[override] # it has no contents to show
        return f"LazyMask({self.source}, shape={tuple(self.shape)})"


def lazy_mask(mask: Mask, shape: tuple[int, int, int, int], device: torch.device) -> LazyMask:
    """Make a mask look like a tensor ``(B, 1, L, S)``."""
    return _wrap(mask, shape, device)


def _wrap(source: Mask | Tensor, shape: tuple[int, ...], device: torch.device) -> LazyMask:
    result: LazyMask = torch.Tensor._make_wrapper_subclass(  # noqa: SLF001 - torch's way
        LazyMask, shape, dtype=torch.bool, device=device
    )
    result.source = source
    return result


def _guarded(result: Tensor) -> Tensor:
    """Wrap boolean results, so that they are not used as numbers either."""
    if result.dtype != torch.bool:
        return result
    return _wrap(result, result.shape, result.device)


def _refusal(operation: Any) -> RecordError:
    if is_backward():
        return RecordError(
            "the backward pass computes attention calls again with the mask of a block of record, "
            "intervene or Monitor.update that has ended, or belongs to another thread or task; put "
            "the backward pass inside the block, on its thread and in its task"
        )
    return RecordError(
        f"the model calculates with its attention mask, or writes to it ({operation}), as with the "
        "numbers that hide keys in 'eager' attention; the mask of 'regard' is True where a key may "
        "be seen. Attention of its own can't be replaced, nor recorded: take "
        "attn_implementation='eager' and output_attentions=True"
    )
