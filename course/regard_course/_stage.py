"""What a stage of the reader's file is, and how its results are compared."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from regard_course._compare import Misfit, compare

__all__ = [
    "Names",
    "Stage",
    "StageError",
    "parameters_of",
    "require_equal",
    "require_gradients",
    "require_past",
    "takes",
]

Names: TypeAlias = Mapping[str, Any]
"""The names that a file defines."""

_TOLERANCE = 1e-4


class StageError(Exception):
    """A stage that is not right.

    Args:
        what: what came, and where.
        why: the mistake where it is recognised, and what is wrong with it.
    """

    def __init__(self, what: str, why: str = "") -> None:
        super().__init__(what)
        self.what, self.why = what, why


@dataclass(frozen=True)
class Stage:
    """A step of the reader's file.

    Args:
        page: where it is written.
        name: what is written, as the page says it.
        is_there: whether a file has come so far.
        check: raises `StageError` where it is not right.
    """

    page: str
    name: str
    is_there: Callable[[Names], bool]
    check: Callable[[Names], None]


def takes(thing: Any, *parameters: str) -> bool:
    """Whether this is a function or class that takes parameters of these names."""
    return callable(thing) and set(parameters) <= set(inspect.signature(thing).parameters)


def require_equal(
    what: str,
    came: Any,
    expected: Any,
    mistakes: Mapping[str, Callable[[], Any]] | None = None,
) -> None:
    """Compare a result with what is expected, and else with what comes of each mistake.

    Args:
        what: the call, as one reads it.
        came: its result.
        expected: what should come.
        mistakes: by what is to be said of each, what would come of it; None for a result that no
            such code gives.

    Raises:
        StageError: they differ.
    """
    difference = compare(came, expected, _TOLERANCE)
    if difference is None:
        return
    why = next((text for text, wrong in (mistakes or {}).items() if _gives(wrong, came)), "")
    if isinstance(difference, Misfit):
        raise StageError(f"{what} gives {difference.came}, not {difference.expected}", why)
    place = f", {difference.place}" if difference.place else ""
    raise StageError(f"{what}{place}: {difference.came}, not {difference.expected}", why)


def _gives(wrong: Callable[[], Any], came: Any) -> bool:
    try:
        return compare(came, wrong(), _TOLERANCE) is None
    except RuntimeError:  # shapes for which this mistake has no result
        return False


def parameters_of(what: str, module: Any, shapes: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """Give a module numbers that are known, and return them by name.

    Args:
        what: how the module was made, as one reads it.
        module: of the reader.
        shapes: what it should have.

    Raises:
        StageError: it is no module, or has other parameters.
    """
    if not isinstance(module, nn.Module):
        raise StageError(
            f"{what} is no nn.Module", "write class …(nn.Module), and super().__init__()"
        )
    own = dict(module.named_parameters())
    missing = [name for name in shapes if name not in own]
    if missing:
        has = ", ".join(own) or "none"
        raise StageError(
            f"{what} has no parameter {missing[0]}; it has {has}",
            "names as on the page; blocks stand in an nn.ModuleList, since a list hides them",
        )
    more = [name for name in own if name not in shapes]
    if more:
        why = "these layers have bias=False" if more[0].endswith("bias") else ""
        raise StageError(f"{what} has a parameter {more[0]} that is not on the page", why)
    for name, shape in shapes.items():
        if tuple(own[name].shape) != tuple(shape):
            raise StageError(f"{name} of {what} is {tuple(own[name].shape)}, not {tuple(shape)}")
    with torch.no_grad():
        for name, parameter in own.items():
            spread = 0.3 if parameter.ndim == 1 else 1.5 * parameter.shape[-1] ** -0.5
            parameter.normal_(std=spread)
            if ".weight" in name and parameter.ndim == 1:
                parameter.add_(1.0)
    return {name: parameter.detach().clone() for name, parameter in own.items()}


def require_past(
    what: str, function: Callable[[Tensor], Tensor], x: Tensor, changed: Tensor
) -> None:
    """Change one position at a time, and see whether an earlier one notices.

    Args:
        what: of which is spoken.
        function: from positions on axis 1 to positions on axis 1.
        x: what it is given.
        changed: other content for every position.

    Raises:
        StageError: one does.
    """
    before = function(x)
    for j in range(1, x.shape[1]):
        other = x.clone()
        other[:, j] = changed[:, j]
        moved = (function(other) - before).flatten(2).abs().amax(dim=(0, 2)) > _TOLERANCE
        if moved[:j].any():
            i = int(moved[:j].nonzero()[0])
            raise StageError(
                f"in {what}, position {i} sees position {j}", "later tokens get through"
            )


def require_gradients(what: str, module: nn.Module, output: Tensor) -> None:
    """Require that every parameter of a module takes part in its output.

    Raises:
        StageError: one has no gradient.
    """
    module.zero_grad()
    if not output.requires_grad:
        raise StageError(
            f"no gradient comes back through {what}", "is there a detach() or a no_grad?"
        )
    output.square().sum().backward()
    for name, parameter in module.named_parameters():
        if parameter.grad is None or not parameter.grad.any():
            raise StageError(
                f"no gradient reaches {name} of {what}", "it takes no part in the result"
            )
