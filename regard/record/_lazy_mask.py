"""A mask that looks like a tensor of B × 1 × L × S and holds two integers a row.

Models of `transformers` pass masks from hand to hand as tensors, and some work on them. So this is
a tensor of that shape, without memory of its own: whoever computes with it is given the boolean
matrix, written down then; attention that knows it takes the intervals.

Axes: B batch, L queries, S keys.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

from regard.mask import Mask, causal, dense, intervals, padding
from regard.record._masks import reduced

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

_ENTRIES = 2**22  # of the mask that are looked at at a time


class LazyMask(torch.Tensor):
    """A boolean mask ``(B, 1, L, S)``, True where a key may be seen, kept as a `Mask`."""

    mask: Mask

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment] # noqa: SLF001

    @classmethod
    def __torch_dispatch__(  # type: ignore[override] # torch calls it without kwargs too
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Compute with the matrix."""

        def plain(value: Any) -> Any:
            return value.written_out() if isinstance(value, cls) else value

        return func(*tree_map(plain, args), **tree_map(plain, kwargs or {}))

    def written_out(self) -> Tensor:
        """The mask as a matrix of B × 1 × L × S."""
        batch, heads, queries, keys = self.shape
        return self.mask.visible(queries, keys, (batch, heads)).to(self.device)

    def __repr__(self) -> str:  # type: ignore[override] # it has no contents to show
        return f"LazyMask({self.mask}, shape={tuple(self.shape)})"


def lazy(mask: Mask, shape: tuple[int, int, int, int], device: torch.device) -> LazyMask:
    """Make a mask look like a tensor ``(B, 1, L, S)``."""
    result: LazyMask = torch.Tensor._make_wrapper_subclass(  # noqa: SLF001 - torch's way
        LazyMask, shape, dtype=torch.bool, device=device
    )
    result.mask = mask
    return result


def structured(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Tensor] | None = None,
    attention_mask: Tensor | None = None,
    *,
    allow_is_bidirectional_skip: bool = False,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **others: Any,  # noqa: ARG001 - the interface's
) -> LazyMask | None:
    """Make the mask of a model of `transformers`: its interface for the name ``regard``.

    Args:
        batch_size: B.
        q_length: L.
        kv_length: S.
        q_offset: position of the first query.
        kv_offset: position of the first key.
        mask_function: tells for indices of batch, head, query and key whether the key is visible.
        attention_mask: True for tokens, False for padding, ``(B, ≥ S)``.
        allow_is_bidirectional_skip: whether None may stand for a mask that hides nothing.
        use_vmap: whether the mask function takes one index at a time.
        device: where the mask is needed.
        others: what masks of other kernels take.
    """
    from transformers import masking_utils

    everything: Any = masking_utils.bidirectional_mask_function
    only_earlier: Any = masking_utils.causal_mask_function
    device = torch.device(device)
    first, offset = int(q_offset), int(q_offset) - kv_offset
    keep = _keep(attention_mask, kv_length, kv_offset)
    if mask_function is everything:
        if keep is None and allow_is_bidirectional_skip:
            return None
        mask = Mask(offset=offset)
    elif mask_function is None or mask_function is only_earlier:
        mask = causal(offset=offset)
    else:
        sizes = (batch_size, q_length, kv_length)
        mask = _evaluated(mask_function, sizes, first, kv_offset, offset, device, use_vmap=use_vmap)
    if keep is not None:
        try:
            mask = mask & padding(keep)
        except ValueError:  # padding between tokens
            mask = mask & dense(keep[:, None, None, :])
    return lazy(mask, (batch_size, 1, q_length, kv_length), device)


def _keep(attention_mask: Tensor | None, keys: int, first: int) -> Tensor | None:
    """Cut the padding mask to the keys; None where it hides nothing."""
    if attention_mask is None:
        return None
    missing = first + keys - attention_mask.shape[-1]
    keep = torch.nn.functional.pad(attention_mask.bool(), (0, max(missing, 0)))
    within = keep[:, first : first + keys]
    return None if bool(within.all()) else within


def _evaluated(
    mask_function: Callable[..., Tensor],
    sizes: tuple[int, int, int],
    first: int,
    kv_offset: int,
    offset: int,
    device: torch.device,
    *,
    use_vmap: bool,
) -> Mask:
    """Ask a mask function for every entry, some rows at a time, and keep where rows begin and end.

    If a row has gaps, the whole matrix is kept.
    """
    from transformers.masking_utils import sdpa_mask

    batch, queries, keys = sizes

    def rows(start: int, count: int) -> Tensor:
        """Write some rows down, ``(B, 1, count, S)``."""
        written: Tensor = sdpa_mask(
            batch_size=batch,
            q_length=count,
            kv_length=keys,
            q_offset=first + start,
            kv_offset=kv_offset,
            mask_function=mask_function,
            allow_is_causal_skip=False,
            use_vmap=use_vmap,
            device=device,
        )
        return written

    height = max(1, _ENTRIES // max(1, batch * keys))
    bounds = []
    for start in range(0, queries, height):
        count = min(height, queries - start)
        found = reduced(rows(start, count), (batch, 1), count, keys).mask
        if found.allowed is not None:
            return replace(dense(rows(0, queries)), offset=offset)
        bounds.append(found.intervals(count, keys, (batch, 1)))
    start_stop = (torch.cat(part, dim=-1).to(device) for part in zip(*bounds, strict=True))
    return intervals(*start_stop, offset=offset)
