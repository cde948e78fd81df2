"""The mask interface of `transformers` for attention by ``regard``: row intervals, no matrix.

Axes: B batch, L queries, S keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.intercept._lazy_mask import lazy_mask
from regard.intercept._mask_reduction import reduce_function
from regard.intercept._supported import require_mask_interface
from regard.masks import Mask, causal, dense, padding

if TYPE_CHECKING:
    from regard.intercept._lazy_mask import LazyMask


def mask_interface(
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
    config: Any = None,
    **others: Any,  # noqa: ARG001 - the interface's
) -> LazyMask | Mask | None:
    """Make the mask of a model of `transformers`: its interface for the name ``regard``.

    Args:
        batch_size: B.
        q_length: L.
        kv_length: S.
        q_offset: position of the first query.
        kv_offset: position of the first key.
        mask_function: whether a key is visible, for indices of batch, head, query and key.
        attention_mask: True for tokens, False for padding, ``(B, ≥ S)``.
        allow_is_bidirectional_skip: whether None may stand for a mask that hides nothing.
        use_vmap: whether the mask function takes one index at a time.
        device: where the mask is needed.
        config: of the model that asks.
        others: arguments of other kernels' masks.

    Returns:
        None only if every key may be seen; a `Mask` to a model that is being compiled.

    Raises:
        RecordError: for a model whose attention is its own.
    """
    from transformers import masking_utils

    compiling = torch.compiler.is_compiling()
    if not compiling:  # then the mask is not a tensor, and adding it raises
        require_mask_interface(config)
    everything: Any = masking_utils.bidirectional_mask_function
    only_earlier: Any = masking_utils.causal_mask_function
    device = torch.device(device)
    # A graph can't read numbers, nor make a tensor subclass.
    first = q_offset if compiling else int(q_offset)
    offset = first - kv_offset
    keep = _keep(attention_mask, kv_length, kv_offset)
    if keep is not None and not compiling and bool(keep.all()):
        keep = None
    if mask_function is everything:
        if keep is None and allow_is_bidirectional_skip:
            return None
        mask = Mask(offset=offset)
    elif mask_function is None or mask_function is only_earlier:
        mask = causal(offset=offset)
    else:
        evaluate = partial(
            masking_utils.sdpa_mask,
            batch_size=batch_size,
            kv_length=kv_length,
            kv_offset=kv_offset,
            mask_function=mask_function,
            allow_is_causal_skip=False,
            use_vmap=use_vmap,
            device=device,
        )
        if compiling:
            mask = replace(dense(evaluate(q_length=q_length, q_offset=first)), offset=offset)
        else:
            mask = reduce_function(
                lambda start, count: evaluate(q_length=count, q_offset=int(first) + start),
                (batch_size, 1),
                q_length,
                kv_length,
            )
            mask = replace(mask, offset=int(offset))
    if keep is not None:
        mask = mask & (dense(keep[:, None, None, :]) if compiling else _padding(keep))
    return mask if compiling else lazy_mask(mask, (batch_size, 1, q_length, kv_length), device)


def _keep(attention_mask: Tensor | None, keys: int, first: int) -> Tensor | None:
    """Cut the padding mask to the keys."""
    if attention_mask is None:
        return None
    missing = first + keys - attention_mask.shape[-1]
    keep = torch.nn.functional.pad(attention_mask.bool(), (0, max(missing, 0)))
    return keep[:, first : first + keys]


def _padding(keep: Tensor) -> Mask:
    try:
        return padding(keep)
    except ValueError:  # padding between tokens
        return dense(keep[:, None, None, :])
