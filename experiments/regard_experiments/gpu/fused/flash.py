"""FlashAttention on CUDA: torch's own, the second, or a later one that was activated. Experimental.

Dao 2023, arXiv:2307.08691. Its ``is_causal`` lines queries and keys up at the bottom right: query
i of L sits at position S − L + i.

Axes: B batch, H query heads, L queries, Dv head dimension of value.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard._shapes import Float
from regard.backends.objections import (
    objection_to_dtype,
    objection_to_gradients,
    objection_to_width,
)
from regard.inputs import Problem
from regard_experiments.gpu import hardware, rules
from regard_experiments.gpu.fused._run import fused

_WIDEST = {"FA2": 256, "FA3": 256, "FA4": 128}
_RUNS_ON = {"FA3": (9,), "FA4": (9, 10)}  # compute capabilities, as torch lets them


def activated() -> str | None:
    """Name the FlashAttention that ``torch.nn.attention.activate_flash_attention_impl`` has put in.

    None is torch's own. Where one is activated, torch sends calls of its own kernel there.
    """
    current = getattr(torch.nn.attention, "current_flash_attention_impl", None)  # torch ≥ 2.11
    return None if current is None else current()


def objection(problem: Problem) -> str | None:
    """Say which argument is not supported, or None."""
    fits = problem.queries <= problem.keys  # it mishandles queries that sit before the first key
    return (
        hardware.elsewhere(problem, "flash")
        or rules.unsupported(problem)
        or objection_to_dtype(problem, torch.bfloat16, torch.float16)
        or _wrong_gpu(problem)
        or rules.only_causal(problem, "whose last query sits at the last key", fits=fits)
        or objection_to_width(problem, _WIDEST[_version()], _version())
        or objection_to_gradients(problem, sink=False)
        or _missing_backward(problem)
        or rules.nonfinite_reason(problem)
    )


def _version() -> str:
    return activated() or "FA2"


def _wrong_gpu(problem: Problem) -> str | None:
    version = _version()
    if version == "FA2":
        return hardware.too_old(problem, (8, 0))
    if version not in _RUNS_ON:
        return f"{version!r} was activated in its place, which is unknown here"
    major = hardware.capability(problem.query.device)[0]
    if major not in _RUNS_ON[version]:
        return f"{version} was activated, which does not run on compute capability {major}"
    return None


def _missing_backward(problem: Problem) -> str | None:
    """Object to the one range of widths of which FlashAttention 2 has no backward on small GPUs."""
    if not problem.differentiable or _version() != "FA2":
        return None
    has, width = hardware.capability(problem.query.device), _width(problem)
    if ((8, 6) <= has <= (8, 9) or has[0] == 12) and 192 < width <= 224:
        return f"gradients of head dimension {width} are not supported on compute capability {has}"
    return None


def _width(problem: Problem) -> int:
    """The width that all three are padded to, since the kernel wants D = Dv."""
    return rules.rounded_up(
        max(t.shape[-1] for t in (problem.query, problem.value) if t is not None)
    )


def run(problem: Problem) -> tuple[Float[Tensor, "B H L Dv"], Float[Tensor, "B H L"]]:
    """Compute context and logsumexp. The kernel shares key heads among query heads by itself."""
    is_causal = not rules.sees_everything(problem.rows)

    def call(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        context, logsumexp, *_ = torch.ops.aten._scaled_dot_product_flash_attention(  # noqa: SLF001 - the public call drops the log-sum-exp
            query, key, value, is_causal=is_causal, scale=scale
        )
        # Every row sees a key. Of one whose weights are NaN the kernel says that the sum is ∞.
        return context, logsumexp.masked_fill(logsumexp == torch.inf, torch.nan)

    return fused(problem, call, width=_width(problem))
