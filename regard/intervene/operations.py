"""The operations of an intervention, as the user stated them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import ClassVar

from torch import Tensor

from regard._shapes import Float
from regard.intercept import Moment, now
from regard.pattern import Pattern
from regard.record.sites import AttentionKind

CheckedIndices = tuple[int, ...] | slice | None
"""Validated indices; None is all."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Operation:
    """An operation, and the layers, heads and sequences it applies to."""

    layers: CheckedIndices = None
    heads: CheckedIndices = None
    batch: CheckedIndices = None
    kind: AttentionKind = "self"
    time: Moment = field(default_factory=now, repr=False)
    """When it was stated; earlier calls are unchanged when a checkpoint recomputes them."""
    method: ClassVar[str]
    """Name of the method of `Intervention` that creates it."""

    def __repr__(self) -> str:
        stated = {each.name: getattr(self, each.name) for each in fields(self) if each.repr}
        stated = {name: value for name, value in stated.items() if value is not None}
        if self.kind == "self":
            del stated["kind"]
        arguments = ", ".join(f"{name}={_shown(value)}" for name, value in stated.items())
        return f"{self.method}({arguments})"


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class KnockOut(Operation):
    """Hides keys from queries, both given by position in the text."""

    queries: CheckedIndices = None
    keys: CheckedIndices = None
    method = "knock_out"


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Steer(Operation):
    """Adds a number to the scores of keys."""

    queries: CheckedIndices = None
    keys: CheckedIndices = None
    by: float
    method = "steer"


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Temper(Operation):
    """Multiplies the scores by a factor."""

    by: float
    method = "temper"


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class PatchPattern(Operation):
    """Substitutes the weights of another run in rows given by position in the text."""

    pattern: Pattern
    queries: CheckedIndices = None
    method = "patch"


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class PatchValue(Operation):
    """Substitutes values at keys given by position in the text."""

    value: Float[Tensor, "#B #G #S Dv"]
    keys: CheckedIndices = None
    method = "patch"


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class PatchContext(Operation):
    """Substitutes contexts in rows given by position in the text."""

    context: Float[Tensor, "#B #H #L Dv"]
    queries: CheckedIndices = None
    method = "patch"


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Ablate(Operation):
    """Replaces a context by 0, or by its own mean."""

    by: str = "zero"
    method = "ablate"


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return repr(value[0] if len(value) == 1 else list(value))
    if isinstance(value, Tensor):
        return f"tensor of shape {tuple(value.shape)}"
    return repr(value)
