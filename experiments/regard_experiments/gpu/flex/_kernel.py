"""The compiled call, one for each kind of problem.

torch compiles anew where a number or a dtype differs, and lengths for good once two have been seen.
It counts how often it did so for one piece of code, and gives up at eight: many models in one
session come to more. So each kind gets a piece of code of its own. Within a kind only lengths, the
batch and whether a gradient is wanted differ. To give up would mean to write the scores down, in
silence: ``fullgraph=True`` makes an error of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from regard_experiments.gpu.flex._mods import ScoreMod

Attend = Callable[..., tuple[Tensor, Tensor]]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    score_mod: ScoreMod | None,
    blocks: BlockMask | None,
    kind: tuple[object, ...],
) -> tuple[Tensor, Tensor]:
    """Compute context and logsumexp; within a larger compilation, as a part of it.

    Args:
        query: ``(B, H, L, D)``.
        key: ``(B, G, S, D)``.
        value: ``(B, G, S, Dv)``.
        scale: of the scores.
        score_mod: None for none.
        blocks: None where every query sees every key.
        kind: all that the two functions of the scores have compiled in.
    """
    call: Attend = _call
    if not torch.compiler.is_compiling():
        heads, dims = (query.shape[1], key.shape[1]), (query.shape[-1], value.shape[-1])
        call = _compiled((query.dtype, query.device, heads, dims, scale, blocks is None, kind))
    return call(query, key, value, scale, score_mod, blocks)


def _call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    score_mod: ScoreMod | None,
    blocks: BlockMask | None,
) -> tuple[Tensor, Tensor]:
    context, extra = flex_attention(
        query,
        key,
        value,
        score_mod=score_mod,
        block_mask=blocks,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
        return_aux=AuxRequest(lse=True),
    )
    assert extra.lse is not None, "the call requests it"
    return context, extra.lse


@cache
def _compiled(kind: tuple[object, ...]) -> Attend:  # noqa: ARG001 - it is what the cache goes by
    """Compile a copy of the call under a name of its own, by which torch tells code apart."""

    def own(*arguments: Any) -> tuple[Tensor, Tensor]:
        return _call(*arguments)

    number = _compiled.cache_info().currsize
    own.__code__ = own.__code__.replace(co_name=f"attend_{number}")
    return torch.compile(own, fullgraph=True)
