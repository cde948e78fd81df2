"""Objections that several backends share.

An objection is a clause that states the argument and what the backend supports. `choose` puts the
backend's name before it and the cure after it.
"""

from __future__ import annotations

import torch

from regard._contexts import exporting_to_onnx, has_tangent, transforms
from regard.inputs import Problem

THREE_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def objection_to_context(problem: Problem) -> str | None:
    """Object to derivatives and graphs that only the written-out computation supports."""
    levels = transforms()
    if "Jvp" in levels or any(map(has_tangent, problem.continuous)):
        return "a tensor carries a tangent, but forward-mode derivatives are not supported"
    if "Grad" in levels and torch.compiler.is_dynamo_compiling():
        return "torch.compile cannot trace how a transform differentiates it"
    if levels.count("Grad") > 1:
        return "two transforms differentiate it, but only first derivatives are supported"
    if exporting_to_onnx():
        return "it is exported to ONNX, which does not know its operator"
    return None


def objection_to_numbers(problem: Problem, mishandled: str) -> str | None:
    """Object to values that are not finite, or unknown.

    Args:
        problem: the checked arguments.
        mishandled: end of the message: what the kernel does with such values.
    """
    if problem.is_finite is None:
        return "it must read the numbers, which a transform, a trace or the device hides"
    if problem.is_finite:
        return None
    return f"query, key or value holds NaN, infinity or more than 2⁵⁵, which {mishandled}"


def objection_to_dtype(problem: Problem, *dtypes: torch.dtype) -> str | None:
    """Object to any dtype but these."""
    if problem.query.dtype in dtypes:
        return None
    *others, last = map(str, dtypes)
    return f"query is {problem.query.dtype}, not {', '.join(others)} or {last}"


def objection_to_sizes(problem: Problem) -> str | None:
    """Object to a missing value, and to a head dimension of 0."""
    if problem.value is None:
        return "value is missing"
    if problem.query.shape[-1] == 0 or problem.value.shape[-1] == 0:
        return "a head dimension is 0"
    return None


def objection_to_width(problem: Problem, widest: int, kernel: str = "") -> str | None:
    """Object to head dimensions above a kernel's maximum.

    Args:
        problem: the checked arguments.
        widest: the maximum.
        kernel: name of the kernel for the message; empty for none.
    """
    width = max(t.shape[-1] for t in (problem.query, problem.value) if t is not None)
    limit = f"{widest}, the limit of {kernel}" if kernel else f"{widest}"
    return f"head dimension {width} is above {limit}" if width > widest else None


def objection_to_length(problem: Problem, longest: int) -> str | None:
    """Object to more queries or keys than a kernel's maximum."""
    longer = max(problem.queries, problem.keys)
    return f"{longer} queries or keys are above {longest}" if longer > longest else None


def objection_to_pair(one: Problem, other: Problem) -> str | None:
    """Object to comparing two problems of different sizes or dtypes."""
    if one.query.dtype != other.query.dtype:
        return f"one is {one.query.dtype}, the other {other.query.dtype}"
    sizes = [(p.heads, p.key.shape[1], p.queries, p.keys) for p in (one, other)]
    return None if sizes[0] == sizes[1] else "heads, key heads, queries or keys differ"


def objection_to_gradients(problem: Problem, *, sink: bool) -> str | None:
    """Object to gradients of bias and ALiBi slopes, and through a sink unless supported.

    Args:
        problem: the checked arguments, which may require gradients.
        sink: whether gradients through a sink are supported.
    """
    if not problem.differentiable:
        return None
    for name, tensor in (("mask or bias", problem.rows.bias), ("alibi", problem.alibi)):
        if tensor is not None and tensor.requires_grad:
            return f"the gradient of {name} is not supported; detach it"
    if problem.sink is not None and not sink:
        return "gradients through a sink are not supported; compute under torch.no_grad()"
    return None


def objection_to_dropout(problem: Problem) -> str | None:
    """Object to dropout: a kernel would drop other weights than the other backends."""
    if problem.dropout == 0:
        return None
    return f"dropout={problem.dropout} would not be reproducible; set it to 0"


def objection_to_softcap(problem: Problem) -> str | None:
    """Object to a softcap."""
    if problem.softcap is None:
        return None
    return f"softcap={problem.softcap} is not supported; leave it out"
