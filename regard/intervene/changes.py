"""The changes that an intervention makes, as they were stated."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import ClassVar

from regard.intercept import Moment, now
from regard.pattern import Pattern
from regard.record import Recording
from regard.record.sites import AttentionKind

Selected = tuple[int, ...] | slice | None
"""Numbers, checked; None is all."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Change:
    """A change, and where it is made."""

    layers: Selected = None
    heads: Selected = None
    batch: Selected = None
    kind: AttentionKind = "self"
    time: Moment = field(default_factory=now, repr=False)
    """When it was stated: calls made before stay as they were where they are computed again."""
    method: ClassVar[str]
    """The method of `Intervention` that makes it."""

    def __repr__(self) -> str:
        stated = {each.name: getattr(self, each.name) for each in fields(self) if each.repr}
        stated = {name: value for name, value in stated.items() if value is not None}
        if self.kind == "self":
            del stated["kind"]
        arguments = ", ".join(f"{name}={_shown(value)}" for name, value in stated.items())
        return f"{self.method}({arguments})"


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class KnockOut(Change):
    """Keys hidden from queries, by their numbers in the text."""

    queries: Selected = None
    keys: Selected = None
    method = "knock_out"


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Steer(Change):
    """A number added to the scores of keys."""

    queries: Selected = None
    keys: Selected = None
    by: float
    method = "steer"


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Temper(Change):
    """A factor on the scores."""

    by: float
    method = "temper"


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Patch(Change):
    """The weights of another run."""

    pattern: Pattern
    method = "patch"


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Ablate(Change):
    """A context that is 0, its own mean, or that of a recording."""

    by: str | Recording = "zero"
    method = "ablate"


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return repr(value[0] if len(value) == 1 else list(value))
    return repr(value)
