"""Ring attention, forward and backward.

Axes: B batch, H query heads, G key/value heads, n positions of a rank, D head dimension of query
and key, Dv of value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Unpack

import torch
import torch.distributed as dist
from torch import Tensor

from regard._shapes import Float
from regard.errors import Error
from regard.inputs import ScoringOptions
from regard_experiments.distributed import _kernels
from regard_experiments.distributed._merge import merge, take_in_sink
from regard_experiments.distributed._pattern import ShardedPattern
from regard_experiments.distributed._plan import Plan, make_plan
from regard_experiments.distributed.ring import KeySums


def attention(
    query: Float[Tensor, "*b n D"],
    key: Float[Tensor, "*#g m D"],
    value: Float[Tensor, "*#g m Dv"],
    *,
    group: dist.ProcessGroup | None = None,
    **options: Unpack[ScoringOptions],
) -> Float[Tensor, "*b n Dv"]:
    """Compute `regard.attention` of a sequence whose positions lie on several ranks.

    Every rank of the group calls it at the same time with its shards, as `shard` cuts them, and
    gets the contexts of its own queries. Keys and values go round the ring once; in the backward
    pass they go round again, and their gradients with them. If a gradient is wanted, every rank
    has to run the backward pass. Memory on each rank is that of its shards, their neighbour's, and
    what a kernel works in.

    Partial contexts are merged in float32, or in float64 for float64. Where the native kernels do
    not serve (float64, and other devices than the CPU), blocks are computed as they are written
    out, some rows at a time.

    Args:
        query: this rank's queries, ``(B, H, n, D)``.
        key: this rank's keys, ``(B, G, m, D)``, H a multiple of G; of the same sequence or another.
        value: this rank's values, ``(B, G, m, Dv)``.
        mask: of the whole sequence, the same on every rank: any but `regard.dense`.
        scale: factor on the scores; None is 1/√D.
        softcap: cap·tanh(score/cap) after scaling.
        alibi: slope of each head, ``(H,)``, the same on every rank.
        sink: a logit of each head, ``(H,)``, the same on every rank. Gradients of alibi and sink
            hold this rank's part: sum them over the ranks, like those of a model's weights. In half
            precision that of alibi contains the context's rounding times the distance of the keys.
        group: the ranks; None is the default group.

    Returns:
        context ``(B, H, n, Dv)`` of this rank's queries.

    Raises:
        ValueError: for arguments that do not fit together, on this rank or between ranks.
        TypeError: for arguments of another kind.
        Error: if there is no process group, or another rank has failed.

    Source: Liu, Zaharia and Abbeel 2023, arXiv:2310.01889.

    Example:
        A group of one rank; `torchrun` starts more.

        >>> import torch, torch.distributed as dist, regard
        >>> from regard_experiments.distributed import attention, shard
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> whole = torch.randn(3, 2, 5, 7)
        >>> query, key, value = shard(whole, -2).unbind()
        >>> attention(query, key, value, mask=regard.causal()).shape
        torch.Size([2, 5, 7])
        >>> dist.destroy_process_group()
    """
    return attend(query, key, value, options, group=group)[0]


def attention_with_pattern(
    query: Float[Tensor, "*b n D"],
    key: Float[Tensor, "*#g m D"],
    value: Float[Tensor, "*#g m Dv"],
    *,
    group: dist.ProcessGroup | None = None,
    **options: Unpack[ScoringOptions],
) -> tuple[Float[Tensor, "*b n Dv"], ShardedPattern]:
    """Compute `attention`, and give the weights as a lazy `ShardedPattern` beside it.

    Args:
        query: this rank's queries, ``(B, H, n, D)``.
        key: this rank's keys, ``(B, G, m, D)``.
        value: this rank's values, ``(B, G, m, Dv)``.
        group: the ranks; None is the default group.
        options: mask, scale, softcap, alibi and sink, as for `attention`.

    Raises:
        ValueError, TypeError, Error: as for `attention`.

    Example:
        >>> import torch, torch.distributed as dist, regard
        >>> from regard_experiments.distributed import attention_with_pattern, shard
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> query, key, value = shard(torch.randn(3, 2, 5, 7), -2).unbind()
        >>> context, pattern = attention_with_pattern(query, key, value, mask=regard.causal())
        >>> pattern.entropy().shape
        torch.Size([2, 5])
        >>> dist.destroy_process_group()
    """
    return attend(query, key, value, options, group=group)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    options: ScoringOptions,
    *,
    check_finite: bool = False,
    refused: Mapping[str, str] | None = None,
    group: dist.ProcessGroup | None,
) -> tuple[Tensor, ShardedPattern]:
    """Compute context and pattern; see `make_plan` for the arguments."""
    plan, problem = make_plan(
        *("attention", query, key, value, options),
        check_finite=check_finite,
        refused=refused or {},
        group=group,
    )
    apply: Callable[..., tuple[Tensor, Tensor]] = _RingAttention.apply
    context, logsumexp = apply(
        plan, problem.query, problem.key, problem.value, problem.alibi, problem.sink
    )
    return problem.restore(context), ShardedPattern.of_plan(plan, logsumexp)


class _RingAttention(torch.autograd.Function):
    """Context and log-sum-exp of the rank's queries."""

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, query: Tensor, key: Tensor, value: Tensor, *others: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        context, logsumexp = _forward(plan, key, value)
        context = context.to(value.dtype)
        ctx.plan = plan
        ctx.save_for_backward(query, key, value, *others, context, logsumexp)
        ctx.mark_non_differentiable(logsumexp)
        return context, logsumexp

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        wants_numbers = ctx.needs_input_grad[4:]
        apply: Callable[..., tuple[Tensor | None, ...]] = _RingBackward.apply
        return None, *apply(ctx.plan, wants_numbers, gradient, *ctx.saved_tensors)


class _RingBackward(torch.autograd.Function):
    """The gradients, which have none themselves."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ARG004 - torch's signature
        plan: Plan,
        wants_numbers: tuple[bool, bool],
        gradient: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        alibi: Tensor | None,
        sink: Tensor | None,
        context: Tensor,
        logsumexp: Tensor,
    ) -> tuple[Tensor | None, ...]:
        wants_alibi, wants_sink = wants_numbers
        plan = replace(plan, problem=replace(plan.problem, query=query, alibi=alibi))
        gradients = _backward(
            plan, key, value, gradient, context, logsumexp, wants_alibi=wants_alibi
        )
        of_sink = None
        if wants_sink and sink is not None:
            of_sink = _of_sink(sink, gradient, context, logsumexp)
        return *gradients, of_sink

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> None:  # noqa: ARG004 - torch's signature
        raise Error(
            "attention over several ranks gives first derivatives only; for the derivative of a "
            "gradient call regard.attention(..., backend='eager') on one machine"
        )


def _forward(plan: Plan, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Go round the ring once, and merge what each rank's keys give."""
    problem, exact = plan.problem, plan.problem.exact_dtype
    shape = (*problem.heads, problem.queries)
    context = key.new_zeros(*shape, value.shape[-1], dtype=exact)
    logsumexp = key.new_full(shape, -torch.inf, dtype=exact)
    for owner, (its_key, its_value) in plan.circulate(key, value):
        for tile in plan.tiles(owner, its_key, its_value):
            rows = tile.local_queries
            merge(context[..., rows, :], logsumexp[..., rows], *_kernels.forward(tile.problem))
    if problem.sink is not None:
        take_in_sink(context, logsumexp, problem.sink)
    return context, logsumexp


def _backward(
    plan: Plan,
    key: Tensor,
    value: Tensor,
    gradient: Tensor,
    context: Tensor,
    logsumexp: Tensor,
    *,
    wants_alibi: bool,
) -> tuple[Tensor | None, ...]:
    """Go round again; the gradients of keys and values travel with them, and reach their rank."""
    exact = plan.problem.exact_dtype
    wanted = ["query", "key", "value", *(["alibi"] if wants_alibi else [])]
    of_query = torch.zeros_like(plan.problem.query, dtype=exact)
    alibi = plan.problem.alibi
    of_alibi = None
    if wants_alibi and alibi is not None:
        of_alibi = torch.zeros_like(alibi, dtype=exact)
    key_sums = KeySums(plan.ring, lambda rank: plan.size(rank, key, value))
    for owner, (its_key, its_value) in plan.circulate(key, value):
        sums = key.new_zeros(plan.size(owner, key, value), dtype=exact)
        of_key, of_value = plan.unpacked(sums, owner, key, value)
        for tile in plan.tiles(owner, its_key, its_value):
            rows, columns = tile.local_queries, tile.local_keys
            gradients = _kernels.backward(
                tile.problem,
                gradient[..., rows, :],
                context[..., rows, :],
                logsumexp[..., rows],
                wanted,
            )
            of_query[..., rows, :] += gradients["query"]
            of_key[..., columns, :] += gradients["key"]
            of_value[..., columns, :] += gradients["value"]
            if of_alibi is not None:
                of_alibi += gradients["alibi"]
        key_sums.add(owner, sums)
    of_key, of_value = plan.unpacked(key_sums.wait(), plan.ring.rank, key, value)
    if of_alibi is not None and alibi is not None:
        of_alibi = of_alibi.to(alibi.dtype)
    return of_query.to(key.dtype), of_key.to(key.dtype), of_value.to(key.dtype), of_alibi


def _of_sink(sink: Tensor, gradient: Tensor, context: Tensor, logsumexp: Tensor) -> Tensor:
    """Differentiate by a sink: its share of a row takes from all that the row gives."""
    share = torch.exp(sink.to(logsumexp.dtype)[..., None] - logsumexp)
    share = share.masked_fill(logsumexp == -torch.inf, 0)
    dots = (gradient.to(share.dtype) * context.to(share.dtype)).sum(dim=-1)
    return -(share * dots).sum(dim=-1).sum_to_size(sink.shape).to(sink.dtype)
