"""Peers: what each key receives, as one gets it without this package. All causal.

Axes: B batch, H query heads, G key heads, L queries and keys, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

Received = Callable[[], Tensor]

NARROW = 16  # the narrowest value that FlexAttention takes


def peers(query: Tensor, key: Tensor, logsumexp: Tensor) -> dict[str, Received]:
    """Give the ways to the column sums ``(B, H, L)``.

    Args:
        query: ``(B, H, L, D)``.
        key: ``(B, G, L, D)``.
        logsumexp: of each row, ``(B, H, L)``, which flash returns.
    """
    spread = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    ways: dict[str, Received] = {
        "FlexAttention, a second pass": partial(second_pass, query, spread, logsumexp),
        "FlexAttention's backward": partial(by_backward, query, spread),
        "eager": partial(eager, query, spread),
    }
    try:
        from benchmarks.gpu_column_sum import column_sum
    except ModuleNotFoundError:  # triton
        return ways
    return ways | {"flash, then a Triton column sum": partial(column_sum, query, spread, logsumexp)}


def second_pass(query: Tensor, key: Tensor, logsumexp: Tensor) -> Tensor:
    """Let each key attend to the queries: exp of its row's log-sum-exp is its column's sum."""

    def shifted(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:  # noqa: ARG001 - torch's signature
        return score - logsumexp[b, h, k]

    blocks = _blocks(query.shape[-2], str(query.device), transposed=True)
    value = query[..., :NARROW]
    _, extra = _flex(query.device.type)(
        key, query, value, score_mod=shifted, block_mask=blocks, return_aux=AuxRequest(lse=True)
    )
    received: Tensor = extra.lse.exp()
    return received


def by_backward(query: Tensor, key: Tensor) -> Tensor:
    """Differentiate the sum of all contexts by the value: each key's gradient is its column sum."""
    value = torch.zeros_like(key[..., :NARROW]).requires_grad_()
    blocks = _blocks(query.shape[-2], str(query.device), transposed=False)
    with torch.enable_grad():
        context = _flex(query.device.type)(query, key, value, block_mask=blocks)
        (gradient,) = torch.autograd.grad(context, value, torch.ones_like(context))
    return gradient[..., 0]


def eager(query: Tensor, key: Tensor) -> Tensor:
    """Store the weights, then sum them."""
    return _weights(query, key).sum(-2)


def eager_readouts(query: Tensor, key: Tensor) -> dict[str, Tensor]:
    """Do as one does without lazy weights: store them, then reduce them."""
    length = query.shape[-2]
    weights = _weights(query, key.repeat_interleave(query.shape[1] // key.shape[1], 1))
    index = torch.arange(length, device=query.device, dtype=torch.float32)
    diagonals = [weights.diagonal(-back, -2, -1) for back in range(min(64, length))]
    return {
        "received": weights.sum(-2),
        "entropy": torch.special.entr(weights).sum(-1),
        "distance": index - weights @ index,
        "max": weights.amax(-1),
        "mass": weights[..., :4].sum(-1),
        "top 8": weights.topk(min(8, length)).values,
        "image 512 × 512": F.adaptive_avg_pool2d(weights, (min(512, length),) * 2),
        "offsets 64": torch.stack([diagonal.mean(-1) for diagonal in diagonals], -1),
    }


def _weights(query: Tensor, key: Tensor) -> Tensor:
    length = query.shape[-2]
    hidden = torch.ones(length, length, dtype=torch.bool, device=query.device).triu_(1)
    scores = (query @ key.mT * query.shape[-1] ** -0.5).masked_fill_(hidden, -torch.inf)
    return scores.softmax(-1, dtype=torch.float32)


@cache
def _blocks(length: int, device: str, *, transposed: bool) -> Any:
    def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:  # noqa: ARG001 - torch's signature
        return q <= k if transposed else q >= k

    return create_block_mask(causal, None, None, length, length, device=device)


@cache
def _flex(kind: str) -> Callable[..., Any]:
    """FlexAttention, compiled on a GPU; on a CPU torch's reference, to try the calls out."""
    own: Any = flex_attention
    return torch.compile(own, dynamic=False) if kind == "cuda" else own
