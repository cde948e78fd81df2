"""What a call's surroundings ask for that a kernel with a backward of its own can't give."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from regard._contexts import for_onnx, has_tangent, transforms

if TYPE_CHECKING:
    from regard.problem import Problem


def objection_to_context(problem: Problem) -> str | None:
    """Say which derivative or graph is asked for that only the written-out computation gives."""
    levels = transforms()
    if "Jvp" in levels or any(map(has_tangent, problem.continuous)):
        return "a tensor carries a tangent, and it gives no forward-mode derivatives"
    if "Grad" in levels and torch.compiler.is_dynamo_compiling():
        return "torch.compile can't trace how a transform differentiates it"
    if levels.count("Grad") > 1:
        return "two transforms differentiate it, and it gives first derivatives only"
    if for_onnx():
        return "it is exported to ONNX, which does not know its operator"
    return None


def objection_to_numbers(problem: Problem, mishandled: str) -> str | None:
    """Object to numbers that a kernel mishandles, which is to be said, and to not knowing them."""
    if problem.is_finite is None:
        return "it has to look at the numbers, which a transform, a trace or the device hides"
    if problem.is_finite:
        return None
    return f"query, key or value holds NaN, infinity or more than 2⁵⁵, which {mishandled}"
