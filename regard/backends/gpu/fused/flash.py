"""FlashAttention on CUDA: torch's own, which is the second, or a later one that was activated.

Dao 2023, arXiv:2307.08691. Its ``is_causal`` lines queries and keys up at the bottom right: query
i of L sits at position S − L + i.

Axes: B batch, H query heads, L queries, S keys, Dv head dimension of value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from regard._axes import widened
from regard.backends._sink import with_sink
from regard.backends.gpu import hardware, rules
from regard.problem.finite import unrounded

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from regard.problem import Problem

_WIDEST = {"FA2": 256, "FA3": 256, "FA4": 128}
_RUNS_ON = {"FA3": (9,), "FA4": (9, 10)}  # compute capabilities, as torch lets them


def activated() -> str | None:
    """Name the FlashAttention that ``torch.nn.attention.activate_flash_attention_impl`` has put in.

    None is torch's own. Where one is activated, torch sends calls of its own kernel there.
    """
    current = getattr(torch.nn.attention, "current_flash_attention_impl", None)  # torch ≥ 2.11
    return None if current is None else current()


def objection(problem: Problem) -> str | None:
    """Say which argument can't be honoured and what to do, or None."""
    return (
        hardware.elsewhere(problem)
        or rules.unsupported(problem)
        or rules.not_half(problem)
        or _wrong_gpu(problem)
        or _other_mask(problem)
        or _too_wide(problem)
        or rules.nonfinite_reason(problem)
    )


def _wrong_gpu(problem: Problem) -> str | None:
    which = activated() or "FA2"
    if which == "FA2":
        return hardware.too_old(problem, (8, 0))
    if which not in _RUNS_ON:
        return f"{which!r} was activated in its place, of which nothing is known here"
    major = hardware.capability(problem.query.device)[0]
    if major not in _RUNS_ON[which]:
        return f"{which} was activated, which does not run on compute capability {major}"
    return None


def _other_mask(problem: Problem) -> str | None:
    rows = problem.rows
    if problem.alibi is not None or rows.bias is not None:
        return "it adds nothing to the scores"
    if rules.sees_everything(rows):
        return None
    if rules.causal_offset(rows) != problem.keys - problem.queries:
        return "it knows no mask but the causal one whose last query sits at the last key"
    if problem.queries > problem.keys:
        return "it mishandles queries that sit before the first key"
    return None


def _too_wide(problem: Problem) -> str | None:
    assert problem.value is not None, "unsupported() sees to it"
    width = _width(problem)
    which = activated() or "FA2"
    if width > _WIDEST[which]:
        return f"{which} takes head dimensions of at most {_WIDEST[which]}"
    has = hardware.capability(problem.query.device)
    small = (8, 6) <= has <= (8, 9) or has[0] == 12
    if which == "FA2" and problem.differentiable and small and 192 < width <= 224:
        return f"it gives no gradients of head dimension {width} on compute capability {has}"
    return None


def _width(problem: Problem) -> int:
    """Tell the width that all three are widened to, since the kernel wants D = Dv."""
    assert problem.value is not None, "unsupported() sees to it"
    return rules.rounded_up(max(problem.query.shape[-1], problem.value.shape[-1]))


def run(problem: Problem) -> tuple[Float[Tensor, "B H L Dv"], Float[Tensor, "B H L"]]:
    """Compute context and logsumexp. The kernel shares key heads among query heads by itself."""
    empty = rules.nothing(problem)
    if empty is not None:
        return empty
    assert problem.value is not None, "unsupported() sees to it"
    key, value = problem.key, problem.value
    if key.shape[1] != value.shape[1]:
        key = problem.repeated(key)
    query, scale = rules.with_positive_scale(problem.query, problem.scale)
    width = _width(problem)
    query, key, value = (rules.laid_out(widened(t, width)) for t in (query, key, value))
    is_causal = not rules.sees_everything(problem.rows)
    with unrounded(query.device):
        context, logsumexp, *_ = torch.ops.aten._scaled_dot_product_flash_attention(  # noqa: SLF001 - the public call drops the log-sum-exp
            query, key, value, is_causal=is_causal, scale=scale
        )
    context = context[..., : problem.value.shape[-1]]
    # Every row sees a key. Of one whose weights are NaN the kernel says that the sum is ∞.
    logsumexp = logsumexp.masked_fill(logsumexp == torch.inf, torch.nan)
    if problem.sink is None:
        return context, logsumexp
    return with_sink(problem.sink, context, logsumexp)
