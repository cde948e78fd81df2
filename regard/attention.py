"""Attention, computed by the fastest backend that honours every argument.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension of query and
key, Dv of value. Every leading dimension is optional.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, overload

from torch.overrides import handle_torch_function, has_torch_function

from regard._contexts import readable
from regard.backends import choose, quick, run
from regard.mask import Mask
from regard.pattern import Pattern
from regard.pattern.stream import is_coarse
from regard.problem import check

if TYPE_CHECKING:
    import torch
    from jaxtyping import Float
    from torch import Tensor

    from regard.problem import Problem

__all__ = ["attention"]


@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask | None = ...,
    scale: float | None = ...,
    softcap: float | None = ...,
    bias: Tensor | None = ...,
    alibi: Tensor | None = ...,
    sink: Tensor | None = ...,
    dropout: float = ...,
    generator: torch.Generator | None = ...,
    backend: str | None = ...,
    return_pattern: Literal[False] = ...,
) -> Tensor: ...
@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask | None = ...,
    scale: float | None = ...,
    softcap: float | None = ...,
    bias: Tensor | None = ...,
    alibi: Tensor | None = ...,
    sink: Tensor | None = ...,
    dropout: float = ...,
    generator: torch.Generator | None = ...,
    backend: str | None = ...,
    return_pattern: Literal[True],
) -> tuple[Tensor, Pattern]: ...
def attention(
    query: Float[Tensor, "*b L D"],
    key: Float[Tensor, "*#g S D"],
    value: Float[Tensor, "*#g S Dv"],
    *,
    mask: Mask | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    bias: Float[Tensor, "..."] | None = None,
    alibi: Float[Tensor, "..."] | None = None,
    sink: Float[Tensor, "..."] | None = None,
    dropout: float = 0.0,
    generator: torch.Generator | None = None,
    backend: str | None = None,
    return_pattern: bool = False,
) -> Float[Tensor, "*b L Dv"] | tuple[Float[Tensor, "*b L Dv"], Pattern]:
    """Compute scaled dot-product attention, and on request its pattern, which stores no weights.

    ``context = softmax(mask(cap·tanh(scale·query·keyᵀ/cap) + bias)) @ value`` (Vaswani et al. 2017,
    arXiv:1706.03762, equation 1), where the softmax's denominator may hold a sink. A row that may
    see nothing gives context 0 and gradient 0; a hidden key or value never touches a result. The
    dtype of the tensors decides, also under autocast, which `scaled_dot_product_attention` follows.

    It can be compiled, exported and traced, gives shapes on the meta device, and can be transformed
    by `torch.func`. On a CPU, forward-mode derivatives, second derivatives under `torch.func` and
    graphs for ONNX are written out, which takes O(L·S) memory.

    Args:
        query: ``(B, H, L, D)``.
        key: ``(B, G, S, D)``, H a multiple of G: consecutive query heads share a key head
            (Ainslie et al. 2023, arXiv:2305.13245).
        value: ``(B, G, S, Dv)``.
        mask: which keys each query may see, as made by `causal`, `window`, `documents`,
            `padding`, `prefix`, `dense` and joined by ``&``; None for all.
        scale: factor on the scores; None is 1/√D.
        softcap: cap·tanh(score/cap) after scaling (Gemma Team 2024, arXiv:2408.00118, section 2).
        bias: added after the softcap, broadcastable to ``(B, H, L, S)``; −inf hides a key.
        alibi: positive slope of each head, ``(H,)``: −slope·|distance| is added (Press et al.
            2022, arXiv:2108.12409, section 3).
        sink: a logit of each head, ``(H,)``, that takes part in the softmax and has no value.
        dropout: probability of zeroing a weight, survivors scaled by 1/(1−p); meant for training.
        generator: where the dropout's seed is drawn from; None is torch's global one. In the same
            state it drops the same weights by every backend, and in `explain`.
        backend: a name from ``regard.backends.NAMES`` to have this one or an error; None chooses.
        return_pattern: also return the weights, before dropout, as a lazy `Pattern`.

    Returns:
        context ``(B, H, L, Dv)`` in the dtype of value, or ``(context, pattern)``.

    Raises:
        ValueError: for shapes, dtypes, devices or numbers that do not fit together, and for a
            named backend that can't honour an argument.
        TypeError: for arguments of another kind.

    Example:
        >>> import regard, torch
        >>> query, key, value = torch.randn(3, 2, 5, 7).unbind()
        >>> context, pattern = regard.attention(
        ...     query, key, value, mask=regard.causal(), return_pattern=True
        ... )
        >>> context.shape, pattern.shape
        (torch.Size([2, 5, 7]), torch.Size([2, 5, 5]))
    """
    if has_torch_function((query, key, value)):  # such as a recording, which looks on
        return handle_torch_function(
            attention,  # type: ignore[arg-type] # which knows no overloads
            (query, key, value),
            query,
            key,
            value,
            mask=mask,
            scale=scale,
            softcap=softcap,
            bias=bias,
            alibi=alibi,
            sink=sink,
            dropout=dropout,
            generator=generator,
            backend=backend,
            return_pattern=return_pattern,
        )
    if (
        (softcap is None and bias is None and alibi is None and sink is None)
        and (dropout == 0 and generator is None and backend is None and not return_pattern)
        and (mask is None or type(mask) is Mask)
    ):
        context = quick(query, key, value, mask, scale)
        if context is not None:
            return context
    problem = check(
        query,
        key,
        value,
        mask=mask,
        scale=scale,
        softcap=softcap,
        bias=bias,
        alibi=alibi,
        sink=sink,
        dropout=dropout,
        generator=generator,
    )
    choice = choose(problem, backend)
    context, logsumexp = run(problem, choice)
    context = problem.restore(context)
    if not return_pattern:
        return context
    if logsumexp is not None and choice.name != "native" and readable(logsumexp):
        logsumexp = _restated(problem, logsumexp)
    return context, Pattern.of(problem, logsumexp)


def _restated(problem: Problem, logsumexp: Float[Tensor, "B H L"]) -> Float[Tensor, "B H L"]:
    """Bring coarse log-sum-exps to those that the pattern's own dot products lead to.

    A library rounds these otherwise, and for large scores by more than weights can bear.
    """
    coarse = is_coarse(logsumexp.detach())
    if not bool(coarse.any()):
        return logsumexp
    own = Pattern.of(problem, None).logsumexp.reshape(logsumexp.shape)
    return own.to(logsumexp.dtype).where(coarse, logsumexp)
