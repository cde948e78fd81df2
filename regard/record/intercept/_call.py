"""One attention call as a model made it.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Unpack

import torch
from torch import Tensor, nn

from regard._contexts import to_autocast_dtype
from regard._tensors import check_tensor
from regard.mask import causal
from regard.problem import Problem, Scoring, ScoringOptions, check
from regard.record._errors import RecordError
from regard.sdpa import broadcast, causal_bias

if TYPE_CHECKING:
    from regard.record.intercept._mask_reduction import MaskReducer


@dataclass(frozen=True, eq=False, kw_only=True)
class Call:
    """One attention call: what its pattern depends on, and its caller."""

    modules: tuple[nn.Module, ...] = ()
    """Those being called, outermost first."""
    run: int = 0
    """How many calls of outermost modules came before."""
    query: Tensor
    key: Tensor
    scoring: Scoring

    def problem(self) -> Problem:
        """Check the call and lay it out, without gradients.

        Raises:
            RecordError: if the call was made with tensors that hold no numbers.
        """
        if self.query.device.type == "meta":
            raise RecordError(
                "the model runs on the meta device, where tensors hold no numbers; load its weights"
            )
        return check(self.query, self.key, scoring=self.scoring).detached()

    def repeats(self, other: Call) -> bool:
        """Whether another call of the same module had the same weights, for other values.

        A layer may attend in two halves of its values (DiffLlama).
        """
        if not (self.modules and other.modules and self.modules[-1] is other.modules[-1]):
            return False
        if not (self.query.is_set_to(other.query) and _equal(self.key, other.key)):
            return False
        ours, theirs = self.problem(), other.problem()
        spans, others = (
            (None,) * 3 if s is None else s.tensors for s in (ours.rows.spans, theirs.rows.spans)
        )
        return (ours.scale, ours.softcap) == (theirs.scale, theirs.softcap) and all(
            _equal(one, another)
            for one, another in (
                (ours.rows.start, theirs.rows.start),
                (ours.rows.stop, theirs.rows.stop),
                (ours.rows.allowed, theirs.rows.allowed),
                (ours.rows.bias, theirs.rows.bias),
                (ours.alibi, theirs.alibi),
                (ours.sink, theirs.sink),
                *zip(spans, others, strict=True),
            )
        )


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.dtype == other.dtype and torch.equal(one, other)


def sdpa_call(
    reducer: MaskReducer,
    module: nn.Module | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,  # noqa: ARG001 - a pattern is what it was before dropout
    is_causal: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Call:
    """Read a call of ``torch.nn.functional.scaled_dot_product_attention``."""
    if query.is_nested or key.is_nested:
        raise RecordError(
            "the model attends over nested tensors, which are not recorded; pad the batch and hide "
            "the padding with a mask"
        )
    query, key, value = (to_autocast_dtype(tensor) for tensor in (query, key, value))
    grouped_query, grouped_key, attn_mask = _grouped(module, query, key, attn_mask)
    if grouped_query is not query or grouped_key is not key:
        query, key, value, enable_gqa = grouped_query, grouped_key, grouped_key, True
    shared = query.ndim > 2 and key.shape[-3:-2] == value.shape[-3:-2] == (1,)
    query, key, _ = broadcast(query, key, value, grouped=enable_gqa or shared)
    mask = causal(offset=0) if is_causal else None
    if attn_mask is not None:
        lined_up = causal_bias(attn_mask, query.shape[-2], key.shape[-2], is_causal=is_causal)
        if lined_up is not None:
            return Call(query=query, key=key, scoring=Scoring(mask=lined_up, scale=scale))
        check_tensor(attn_mask, "attn_mask")
        reduction = reducer.reduce(attn_mask, query.shape[:-2], query.shape[-2], key.shape[-2])
        if reduction.uniform is not None:
            query = query.masked_fill(reduction.uniform[..., None], 0)
        mask = reduction.mask if mask is None else mask & replace(reduction.mask, offset=0)
    return Call(query=query, key=key, scoring=Scoring(mask=mask, scale=scale))


def _grouped(
    module: nn.Module | None, query: Tensor, key: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Undo what `transformers` does to grouped heads before it calls SDPA.

    It repeats the keys for each query head, or, where there is one query, takes the heads of a
    group for queries of one head. The keys show which of them; configurations may name other
    numbers than a layer uses.
    """
    share = getattr(module, "num_key_value_groups", 1)
    if not isinstance(share, int) or share < 2 or query.ndim != 4:
        return query, key, mask
    if query.shape[1] != key.shape[1]:
        return query, key, mask
    if key.shape[1] % share == 0:
        each = key.unflatten(1, (-1, share))
        first = each[:, :, :1]
        if torch.equal(each, first.expand_as(each)):
            return query, first[:, :, 0], mask
    if query.shape[2] == share:
        if mask is not None and mask.ndim == 4 and mask.shape[1] > 1:
            mask = mask.reshape(mask.shape[0], -1, 1, mask.shape[-1])
        return query.reshape(query.shape[0], -1, 1, query.shape[-1]), key, mask
    return query, key, mask


def attention_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,  # noqa: ARG001 - attention's signature
    *,
    dropout: float = 0.0,  # noqa: ARG001 - a pattern is what it was before dropout
    generator: torch.Generator | None = None,  # noqa: ARG001
    backend: str | None = None,  # noqa: ARG001
    **options: Unpack[ScoringOptions],
) -> Call:
    """Read a call of `regard.attention`."""
    return Call(query=query, key=key, scoring=Scoring.of(options))
