"""Which backend computes a problem: a pure function of the problem that can say why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from regard.backends import eager, native, torch_sdpa

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from regard._problem import Problem

# In the order of preference.
_BACKENDS = {"native": native, "torch_sdpa": torch_sdpa, "eager": eager}
NAMES = tuple(_BACKENDS)


@dataclass(frozen=True)
class Choice:
    """A backend, and what spoke against those that would have been preferred.

    Printing it says so in a line.
    """

    name: str
    objections: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return "; ".join([self.name, *(f"not {name}: {why}" for name, why in self.objections)])


def choose(problem: Problem, backend: str | None = None) -> Choice:
    """Choose the first backend that honours every argument of a problem.

    Args:
        problem: the checked arguments.
        backend: a name from `NAMES`, to have this one or an error.

    Raises:
        ValueError: for an unknown name, and for a backend that can't honour an argument.
    """
    if backend is not None:
        if backend not in _BACKENDS:
            raise ValueError(f"backend is {backend!r}, but must be None or one of {NAMES}")
        why = _BACKENDS[backend].objection(problem)
        if why is not None:
            raise ValueError(f"backend={backend!r} can't compute this: {why}, or use 'eager'")
        return Choice(backend)
    objections: list[tuple[str, str]] = []
    for name, module in _BACKENDS.items():
        why = module.objection(problem)
        if why is None:
            return Choice(name, tuple(objections))
        objections.append((name, why))
    raise AssertionError("eager objects to nothing")


def run(
    problem: Problem, choice: Choice
) -> tuple[Float[Tensor, "B H L Dv"], Float[Tensor, "B H L"] | None]:
    """Compute context and logsumexp with the backend chosen; None for what it does not tell."""
    return _BACKENDS[choice.name].run(problem)
