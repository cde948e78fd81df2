"""Which heads a table lists, and in which order; the names are read without torch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from regard.lens.naming.roles import Role

if TYPE_CHECKING:
    from regard.lens.naming.heads import HeadScores

__all__ = ["ALL", "COLUMNS", "SHARES", "Listing", "values_of"]

SHARES = (
    *(Role.PREVIOUS, Role.FIRST, Role.CURRENT, Role.INDUCTION, Role.DUPLICATE),
    *(Role.SEPARATOR, Role.NEXT),
)
_NAMES = tuple(role.removesuffix(" token") for role in SHARES)
COLUMNS = ("score", "queries", "resting", *_NAMES, "spread", "distance")
"""Of a table of heads."""
_BY_PLACE = "head"


@dataclass(frozen=True)
class Listing:
    """Which heads tables list, and in which order; by default all, in the order of the table."""

    role: Role | None = None
    column: str | None = None
    """What they are sorted by, the largest first: a column of `head_table`; or ``head``."""

    @classmethod
    def named(cls, role: str | None, column: str | None) -> Listing:
        """Make one of names, of a role also its first word.

        Raises:
            ValueError: for a name of neither, with those that there are.

        >>> Listing.named("previous", "score")
        Listing(role=<Role.PREVIOUS: 'previous token'>, column='score')
        """
        roles = {name: one for one in Role for name in (one.value, one.value.split()[0])}
        if role is not None and role not in roles:
            raise ValueError(
                f"role is {role!r}; expected one of {', '.join(Role)}, or the first word of one"
            )
        if column is not None and column not in (_BY_PLACE, *COLUMNS):
            raise ValueError(
                f"sort is {column!r}; expected one of {', '.join((_BY_PLACE, *COLUMNS))}"
            )
        return cls(None if role is None else roles[role], column)

    def of(self, heads: Iterable[HeadScores]) -> list[HeadScores]:
        """Return the heads that are listed, in order; those without a value come last."""
        chosen = [one for one in heads if self.role in (None, one.role)]
        if self.column is None:
            return chosen
        if self.column == _BY_PLACE:
            return sorted(chosen, key=lambda one: (one.layer, one.head))
        values = {id(one): values_of(one)[self.column] for one in chosen}
        return sorted(chosen, key=lambda one: -_or_least(values[id(one)]))


ALL = Listing()


def values_of(head: HeadScores) -> dict[str, float | None]:
    """Return the numbers of a head by column."""
    shares = {name: head.share(role) for name, role in zip(_NAMES, SHARES, strict=True)}
    others = {"spread": head.spread, "distance": head.distance}
    first = {"score": head.score, "queries": head.queries, "resting": head.resting}
    return {**first, **shares, **others}


def _or_least(value: float | None) -> float:
    return -math.inf if value is None else value
