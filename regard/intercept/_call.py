"""One attention call as a model made it.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor, nn

from regard._arguments import check_tensor
from regard._contexts import is_batch, to_autocast_dtype, unwrapped, wants_gradient
from regard._shapes import Float
from regard._tensors import four_axes, version
from regard.errors import RecordError
from regard.inputs import Problem, Scoring, ScoringOptions, check
from regard.intercept._mask_reduction import equal, reduce_mask
from regard.masks import causal, dense
from regard.pattern.reading import sizes_of, take, take_with_context
from regard.pattern.readout import Readout
from regard.sdpa import broadcast, causal_bias

if TYPE_CHECKING:
    from regard.intercept._mask_reduction import MaskReducer


class PendingContext:
    """A context not yet computed, which can be computed in the same pass as readouts.

    Args:
        problem: the call with its value; it runs on a CPU kernel and needs no gradients.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.context: Float[Tensor, "*b L Dv"] | None = None

    def is_of(self, problem: Problem) -> bool:
        """Return whether a problem has the queries, keys and heads of the call."""
        own = self._problem
        return problem.query.is_set_to(own.query) and problem.key.is_set_to(own.key)

    def take(self, readouts: Sequence[Readout[Any, Any]]) -> tuple[Any, ...]:
        """Take readouts of the weights, and compute the context unless it is known."""
        if self.context is not None:
            return take(readouts, self._problem, sizes_of(self._problem))
        context, results = take_with_context(readouts, self._problem)
        self.context = None if context is None else self._problem.restore(context)
        return results


@dataclass(frozen=True, eq=False, kw_only=True)
class Call:
    """One attention call: the inputs of its pattern, and its caller."""

    modules: tuple[nn.Module, ...] = ()
    """The modules being called, outermost first."""
    run: int = 0
    """Number of earlier calls of outermost modules."""
    query: Tensor
    key: Tensor
    scoring: Scoring
    value: Tensor | None = None
    """None if only the weights are known."""
    dropout: float = 0.0
    generator: torch.Generator | None = None
    check_finite: bool = False
    repeated: bool = False
    """Whether the previous call by the same module had the same weights."""
    query_state: int | Tensor | None = None
    """The query's version, or a copy of the query if it has none, to detect later writes; None if
    the call is not compared with the next one."""
    changed: Problem | None = None
    """The attention computed instead, if an intervention changes the weights."""
    pending: PendingContext | None = None
    """The context, if an observer may compute it together with readouts."""
    batched: bool = False
    """Whether tensors have a batch axis hidden by `torch.vmap`."""

    def problem(self) -> Problem:
        """Return the validated attention that is computed, without value and gradients.

        Raises:
            RecordError: for meta tensors, and inside `torch.vmap`.
        """
        self.require_numbers()
        if self.batched:
            raise RecordError(
                "attention is called inside torch.vmap, which hides the batch from the call; "
                "record the model outside of torch.vmap, called with "
                "the batch itself"
            )
        if self.changed is not None:
            return self.changed.detached()
        problem = check(self.query.detach(), self.key.detach(), scoring=self.scoring)
        added = (problem.rows.bias, problem.alibi, problem.sink)
        return problem if all(tensor is None for tensor in added) else problem.detached()

    def value_of(self, problem: Problem) -> Float[Tensor, "B G S Dv"] | None:
        """Return the values that are attended to, in the layout of `problem`; None if not known."""
        value = self.value if self.changed is None else self.changed.value
        return None if value is None else four_axes(value.detach(), problem.leading)

    def attention(self) -> Problem:
        """Return the attention that is computed, with value, dropout and gradients."""
        self.require_numbers()
        if self.changed is not None:
            return self.changed
        assert self.value is not None, "fused calls are not changed"
        return check(
            self.query,
            self.key,
            self.value,
            self.scoring,
            dropout=self.dropout,
            generator=self.generator,
            check_finite=self.check_finite,
        )

    def require_numbers(self) -> None:
        """Refuse meta tensors.

        Raises:
            RecordError: if the query is on the meta device.
        """
        if self.query.device.type == "meta":
            raise RecordError(
                "the model runs on the meta device, where tensors hold no numbers; load its weights"
            )

    def with_(self, **fields: Any) -> Call:
        """Copy with other fields; faster than `dataclasses.replace`, since every call needs it."""
        copy = object.__new__(Call)
        vars(copy).update(vars(self), **fields)
        return copy

    def to_compare(self) -> Call:
        """Return a reduced copy to be compared with the module's next call."""
        state = self.query.clone() if self.query.is_inference() else version(self.query)
        return self.with_(value=None, query_state=state, pending=None)

    def repeats(self, other: Call) -> bool:
        """Return whether an earlier call of the same module had the same weights.

        A layer may apply the same weights to two halves of its values (DiffLlama).

        Args:
            other: made by `to_compare` at the time of the earlier call.
        """
        if not (self.modules and other.modules and self.modules[-1] is other.modules[-1]):
            return False
        if not (self.query.is_set_to(other.query) and equal(self.key, other.key)):
            return False
        then = other.query_state  # a model may reuse the memory of its query
        if not (
            equal(self.query, then) if isinstance(then, Tensor) else version(self.query) == then
        ):
            return False
        ours, theirs = self.problem(), other.problem()
        spans, others = (
            (None,) * 3 if s is None else s.tensors for s in (ours.rows.spans, theirs.rows.spans)
        )
        return (ours.scale, ours.softcap) == (theirs.scale, theirs.softcap) and all(
            equal(one, another)
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


def sdpa_call(
    reducer: MaskReducer,
    module: nn.Module | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
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
    ungrouped = query, key
    query, key, value, attn_mask = _grouped(module, query, key, value, attn_mask)
    grouped = enable_gqa or query is not ungrouped[0] or key is not ungrouped[1]
    shared = query.ndim > 2 and key.shape[-3:-2] == value.shape[-3:-2] == (1,)
    query, key, value = broadcast(query, key, value, grouped=grouped or shared)
    mask = causal(offset=0) if is_causal else None
    lined_up = None
    if attn_mask is not None and is_batch(attn_mask):  # its data cannot be read
        given = dense(attn_mask)
        mask = given if mask is None else mask & given
        attn_mask = None
    if attn_mask is not None:
        lined_up = causal_bias(attn_mask, query.shape[-2], key.shape[-2], is_causal=is_causal)
    if lined_up is not None:
        mask = lined_up
    elif attn_mask is not None:
        check_tensor(attn_mask, "attn_mask")
        trained = torch.is_grad_enabled() and wants_gradient(attn_mask)  # each has its own graph
        reduce = reduce_mask if trained else reducer.reduce
        reduction = reduce(attn_mask, query.shape[:-2], query.shape[-2], key.shape[-2])
        if reduction.uniform is not None:
            query = query.masked_fill(reduction.uniform[..., None], 0)
        mask = reduction.mask if mask is None else mask & replace(reduction.mask, offset=0)
    scoring = Scoring(mask=mask, scale=scale)
    return Call(query=query, key=key, value=value, scoring=scoring, dropout=dropout_p)


def _grouped(
    module: nn.Module | None, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Undo the expansion of grouped heads that `transformers` makes before it calls SDPA.

    It repeats keys for each query head, or, for a single query, treats the heads of a group as
    queries of one head. The shapes of keys tell which; configurations are unreliable here.
    """
    unchanged = query, key, value, mask
    share = getattr(module, "num_key_value_groups", 1)
    if not isinstance(share, int) or share < 2 or query.ndim != 4:
        return unchanged
    if query.shape[1] != key.shape[1]:
        return unchanged
    if key.shape[1] % share == 0:
        once = [_without_repeats(tensor, share) for tensor in (key, value)]
        if once[0] is not None and once[1] is not None:
            return query, once[0], once[1], mask
    if query.shape[2] == share:
        if mask is not None and mask.ndim == 4 and mask.shape[1] > 1:
            mask = mask.reshape(mask.shape[0], -1, 1, mask.shape[-1])
        return query.reshape(query.shape[0], -1, 1, query.shape[-1]), key, value, mask
    return unchanged


def _without_repeats(tensor: Tensor, share: int) -> Tensor | None:
    """Return one head per group, if the others are copies of it; else None."""
    if is_batch(tensor):
        return None
    each = tensor.unflatten(1, (-1, share))
    first = each[:, :, :1]
    return first[:, :, 0] if torch.equal(each, first.expand_as(each)) else None


def attention_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    dropout: float = 0.0,
    generator: torch.Generator | None = None,
    backend: str | None = None,  # noqa: ARG001 - does not affect the result
    check_finite: bool = False,
    **options: Unpack[ScoringOptions],
) -> Call:
    """Read a call of `regard.attention`."""
    return Call(
        query=query,
        key=key,
        value=value,
        scoring=Scoring.of(options),
        dropout=dropout,
        generator=generator,
        check_finite=check_finite,
    )


def outside_transforms(call: Call) -> Call:
    """Replace the wrapped tensors of `torch.func` transforms by the tensors inside.

    `grad`, `vjp` and `jvp` wrap each tensor, with equal data inside; `vmap` hides a batch axis.
    """
    tensors: list[Tensor] = []
    call = _unwrapped(call, tensors)
    return call.with_(batched=any(map(is_batch, tensors)))


def _unwrapped(value: Any, found: list[Tensor]) -> Any:
    """Unwrap all tensors of a value recursively, and append them to a list."""
    if isinstance(value, Tensor):
        found.append(unwrapped(value))
        return found[-1]
    if isinstance(value, tuple):
        return tuple(_unwrapped(part, found) for part in value)
    if not is_dataclass(value) or isinstance(value, nn.Module):
        return value
    copy = object.__new__(type(value))  # bypasses validation, which has already run
    vars(copy).update(
        {field.name: _unwrapped(getattr(value, field.name), found) for field in fields(value)}
    )
    return copy
