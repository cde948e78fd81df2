"""Attention, computed by the fastest backend that supports all arguments.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension of query and
key, Dv of value. Every leading dimension is optional.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack, overload

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from regard._contexts import must_dispatch
from regard._shapes import Float
from regard.backends import Choice, choose_checked, quick, run
from regard.inputs import Problem, Scoring, ScoringOptions, check
from regard.masks import Mask
from regard.pattern import Pattern
from regard.pattern.reading import attend_and_take
from regard.pattern.readout import Readout, check_readout

__all__ = ["attention", "attention_with_pattern"]


_QUICK = {"mask", "scale", "softcap", "alibi", "sink"}  # options supported by `quick`


@overload
def attention(
    query: Float[Tensor, "*b L D"],
    key: Float[Tensor, "*#g S D"],
    value: Float[Tensor, "*#g S Dv"],
    *,
    read: None = None,
    dropout: float = 0.0,
    generator: torch.Generator | None = None,
    backend: str | None = None,
    check_finite: bool = False,
    **options: Unpack[ScoringOptions],
) -> Float[Tensor, "*b L Dv"]: ...
@overload
def attention(
    query: Float[Tensor, "*b L D"],
    key: Float[Tensor, "*#g S D"],
    value: Float[Tensor, "*#g S Dv"],
    *,
    read: Sequence[Readout[Any, Any]],
    dropout: float = 0.0,
    generator: torch.Generator | None = None,
    backend: str | None = None,
    check_finite: bool = False,
    **options: Unpack[ScoringOptions],
) -> tuple[Float[Tensor, "*b L Dv"], tuple[Any, ...]]: ...
def attention(
    query: Float[Tensor, "*b L D"],
    key: Float[Tensor, "*#g S D"],
    value: Float[Tensor, "*#g S Dv"],
    *,
    read: Sequence[Readout[Any, Any]] | None = None,
    dropout: float = 0.0,
    generator: torch.Generator | None = None,
    backend: str | None = None,
    check_finite: bool = False,
    **options: Unpack[ScoringOptions],
) -> Float[Tensor, "*b L Dv"] | tuple[Float[Tensor, "*b L Dv"], tuple[Any, ...]]:
    """Compute scaled dot-product attention.

    ``context = softmax(mask(cap·tanh(scale·query·keyᵀ/cap) + bias)) @ value`` (Vaswani et al. 2017,
    arXiv:1706.03762, equation 1), where the softmax's denominator may include a sink. A fully
    masked row gives context 0 and gradient 0. A masked key or value never affects a result; on CUDA
    this requires it to be finite, or ``check_finite``. The computation uses the dtype of the
    tensors, even under autocast; `scaled_dot_product_attention` follows autocast.

    The function can be compiled, exported, traced and transformed by `torch.func`, and computes
    shapes on the meta device. On a CPU, forward-mode derivatives, second derivatives under
    `torch.func` and graphs for ONNX use the written-out computation, with O(L·S) memory.

    Args:
        query: ``(B, H, L, D)``.
        key: ``(B, G, S, D)``, H a multiple of G: consecutive query heads share a key head
            (Ainslie et al. 2023, arXiv:2305.13245).
        value: ``(B, G, S, Dv)``.
        mask: the keys that each query may see, made by `causal`, `window`, `documents`, `padding`,
            `prefix`, `hide` or `dense` and combined with ``&``; None for all.
        scale: factor on the scores; None means 1/√D.
        softcap: cap·tanh(score/cap) after scaling (Gemma Team 2024, arXiv:2408.00118, section 2).
        bias: added after the softcap, broadcastable to ``(B, H, L, S)``; −inf hides a key.
        alibi: positive slope of each head, ``(H,)``: −slope·|distance| is added (Press et al.
            2022, arXiv:2108.12409, section 3).
        sink: a logit of each head, ``(H,)``, that takes part in the softmax and has no value.
        read: readouts of the weights to compute too, such as ``[Received(), Entropy(), TopK(8)]``;
            the results are bit-equal to those of `attention_with_pattern` and `Pattern.read`. On a
            CPU, if no gradient is needed, they are computed from the same scores as the context.
            They are computed before dropout and have no gradients.
        dropout: probability of zeroing a weight, the others scaled by 1/(1−p); meant for training.
        generator: source of the dropout's seed; None means torch's global generator. In the same
            state it drops the same weights with every backend, and in `explain`.
        backend: a name from ``regard.backends.NAMES``, which is used or raises an error; None
            chooses one.
        check_finite: on CUDA, keep NaN, infinities and numbers above 2⁵⁵ in masked keys and values
            out of results and gradients, as is always done on a CPU. This reads one number from the
            device, which synchronizes with it and breaks a compiled graph.

    Returns:
        context ``(B, H, L, Dv)`` in the dtype of value; with `read`, a pair of it and a tuple of
        the readouts' results, in order.

    Raises:
        ValueError: for inconsistent shapes, dtypes or devices, numbers out of range, and for a
            named backend that does not support an argument.
        TypeError: for arguments of the wrong type.

    Example:
        >>> import regard, torch
        >>> query, key, value = torch.randn(3, 2, 5, 7).unbind()
        >>> regard.attention(query, key, value, mask=regard.causal()).shape
        torch.Size([2, 5, 7])
        >>> from regard.readouts import Entropy, Received
        >>> context, (received, entropy) = regard.attention(
        ...     query, key, value, mask=regard.causal(), read=[Received(), Entropy()]
        ... )
        >>> received.shape, entropy.shape
        (torch.Size([2, 5]), torch.Size([2, 5]))
    """
    if read is not None:
        if isinstance(read, (Readout, str)) or not isinstance(read, Sequence):
            raise TypeError(
                f"read must be a list of readouts, such as [Received()], but is {read!r}"
            )
        for readout in read:
            check_readout(readout)
        return _attention_and_readings(
            query,
            key,
            value,
            read,
            dropout=dropout,
            generator=generator,
            backend=backend,
            check_finite=check_finite,
            **options,
        )
    if has_torch_function((query, key, value)):  # under a mode, such as of context_parallel
        handle: Any = handle_torch_function  # Any, since its type has no overloads
        return handle(
            attention,
            (query, key, value),
            query,
            key,
            value,
            dropout=dropout,
            generator=generator,
            backend=backend,
            check_finite=check_finite,
            **options,
        )
    if dropout == 0 and generator is None and backend is None and options.keys() <= _QUICK:
        mask = options.get("mask")
        if mask is None or type(mask) is Mask:
            scale, softcap = options.get("scale"), options.get("softcap")
            alibi, sink = options.get("alibi"), options.get("sink")
            context = quick(query, key, value, mask, scale, softcap, alibi, sink)
            if context is not None:
                return context
    scoring = Scoring.of(options)
    problem = check(
        query, key, value, scoring, dropout=dropout, generator=generator, check_finite=check_finite
    )
    return problem.restore(run(problem, choose_checked(problem, backend))[0])


def attention_with_pattern(
    query: Float[Tensor, "*b L D"],
    key: Float[Tensor, "*#g S D"],
    value: Float[Tensor, "*#g S Dv"],
    *,
    dropout: float = 0.0,
    generator: torch.Generator | None = None,
    backend: str | None = None,
    check_finite: bool = False,
    **options: Unpack[ScoringOptions],
) -> tuple[
    Float[Tensor, "*b L Dv"], Pattern | Any
]:  # Any: a ShardedPattern in distributed.context_parallel
    """Compute `attention`, and return its weights as a lazy `Pattern` too.

    The pattern stores each row's log-sum-exp, as computed by the kernel, but no weights. It has no
    gradients.

    Args:
        query: ``(B, H, L, D)``.
        key: ``(B, G, S, D)``.
        value: ``(B, G, S, Dv)``.
        dropout: as for `attention`; the pattern contains the weights before dropout.
        generator: as for `attention`.
        backend: likewise.
        check_finite: likewise.
        options: mask, scale, softcap, bias, alibi and sink, as for `attention`.

    Returns:
        context ``(B, H, L, Dv)``, and the weights ``(B, H, L, S)``.

    Raises:
        ValueError, TypeError: as for `attention`.

    Example:
        >>> import regard, torch
        >>> query, key, value = torch.randn(3, 2, 5, 7).unbind()
        >>> context, pattern = regard.attention_with_pattern(
        ...     query, key, value, mask=regard.causal()
        ... )
        >>> context.shape, pattern.shape
        (torch.Size([2, 5, 7]), torch.Size([2, 5, 5]))
    """
    if has_torch_function((query, key, value)):
        return handle_torch_function(
            attention_with_pattern,
            (query, key, value),
            query,
            key,
            value,
            dropout=dropout,
            generator=generator,
            backend=backend,
            check_finite=check_finite,
            **options,
        )
    scoring = Scoring.of(options)
    problem = check(
        query, key, value, scoring, dropout=dropout, generator=generator, check_finite=check_finite
    )
    return _with_pattern(problem, choose_checked(problem, backend))


def _with_pattern(problem: Problem, choice: Choice) -> tuple[Tensor, Pattern]:
    context, logsumexp = run(problem, choice)
    of_library = choice.name != "native"
    return problem.restore(context), Pattern.of(
        problem, logsumexp, by_library=of_library, given=False
    )


def _attention_and_readings(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    read: Sequence[Readout[Any, Any]],
    *,
    dropout: float,
    generator: torch.Generator | None,
    backend: str | None,
    check_finite: bool,
    **options: Unpack[ScoringOptions],
) -> tuple[Tensor, tuple[Any, ...]]:
    if has_torch_function((query, key, value)):
        context, pattern = attention_with_pattern(
            query,
            key,
            value,
            dropout=dropout,
            generator=generator,
            backend=backend,
            check_finite=check_finite,
            **options,
        )
        return context, pattern.read(*read)
    scoring = Scoring.of(options)
    problem = check(
        query, key, value, scoring, dropout=dropout, generator=generator, check_finite=check_finite
    )
    choice = choose_checked(problem, backend)
    if choice.name != "native" or problem.differentiable or must_dispatch():
        context, pattern = _with_pattern(problem, choice)
        return context, pattern.read(*read)
    context, readings = attend_and_take(read, problem)
    return problem.restore(context), readings
