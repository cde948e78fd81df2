"""What a head does on a text, in a word: a rule over its figures.

A share of weight says little by itself: on three tokens every head puts much on the first. So each
share is held against the one of a head that spreads evenly over all it sees. The **lead** is the
part of what an even head leaves: 0 for a head that spreads evenly, 1 for one that puts all its
weight there.

Shares on earlier copies and on what followed them are held against a second one: what the same keys
get from the other queries of the same head (`repeats.Controls`). A head that looks at one key from
everywhere is no induction head where that key happens to be a successor. The score is the prefix
matching of Olsson et al. 2022, arXiv:2209.11895; they take it on long random texts, where such keys
do not occur, and this makes up for it on the short ones that people read.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["ENOUGH", "LEAD", "NEAR", "WIDE", "Figures", "Role", "lead", "role_of"]

LEAD = 0.25
"""Least lead that names a head. Above a quarter of its free weight no head does it by accident,
and at most three relations can reach it at once."""

ENOUGH = 8
"""Fewest queries after which a head is named for what it does with repeats. Their shares scatter by
about 0.2 in induction heads, so that the mean of eight is known to 0.07: `LEAD` is three times
that, and more."""

NEAR = 0.5
"""A head is local when it looks back less than this share of an even head's distance."""

WIDE = 0.8
"""A head spreads when its entropy is at least this share of the highest possible."""


class Role(StrEnum):
    """What a head does on a text; the value is what is shown."""

    INDUCTION = "induction"
    SAME = "same token"
    PREVIOUS = "previous token"
    ITSELF = "itself"
    FIRST = "first token"
    LOCAL = "nearby tokens"
    SPREAD = "spread evenly"
    MIXED = "mixed"
    ALONE = "no choice"

    @property
    def meaning(self) -> str:
        """The role in a sentence."""
        return _MEANINGS[self]


_MEANINGS = {
    Role.INDUCTION: "where its token stood before, it looks at what came next",
    Role.SAME: "it looks at earlier copies of its token",
    Role.PREVIOUS: "it looks at the token before",
    Role.ITSELF: "it looks at the token itself",
    Role.FIRST: "it rests on the first token",
    Role.LOCAL: "it looks at tokens nearby",
    Role.SPREAD: "it spreads over all tokens that it may see",
    Role.MIXED: "it does no single one of these",
    Role.ALONE: "a single token can only attend to itself",
}


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Readouts of one head on one text, each a mean over queries.

    Shares are of a query's weight. The first query, which has no choice, counts nowhere.
    """

    previous: float
    """Share on the token before."""
    first: float
    """Share on the first token."""
    itself: float
    """Share on the query's own token."""
    induction: float | None
    """Share on what followed earlier copies of the token, over the queries that have any such;
    None where none has."""
    induction_control: float | None
    """What the same keys get from the other queries; None where there is no share."""
    induction_queries: int
    """How many queries that is."""
    same: float | None
    """Share on earlier copies of the token, over the queries that have any; None where none has."""
    same_control: float | None
    """As for induction."""
    same_queries: int
    """As for induction."""
    spread: float
    """Entropy of a row, as a share of the highest that its number of keys allows."""
    entropy: float
    """Entropy of a row, in nats."""
    distance: float
    """How far back the weight lies, in tokens."""


def lead(share: float | None, even: float | None) -> float:
    """Part of the weight that an even head leaves elsewhere and this one brings here; at most 1.

    >>> round(lead(0.6, 0.2), 3), lead(0.2, 0.2), lead(None, None)
    (0.5, 0.0, 0.0)
    """
    if share is None or even is None or even >= 1:
        return 0.0
    return (share - even) / (1 - even)


def role_of(figures: Figures | None, even: Figures | None) -> Role:
    """Name what a head does.

    In this order, the first that holds:

    1. induction or same token, whichever leads more, if that lead is at least `LEAD`, over an even
       head and over what the same keys get from other queries, and rests on at least `ENOUGH`
       queries. They come first because they are measured only where the text repeats itself: such
       a head has to be somewhere else the rest of the time, mostly on the first token.
    2. previous token, itself or first token, whichever leads most, by the same threshold.
    3. spread evenly, if the entropy is at least `WIDE` of the highest possible.
    4. nearby tokens, if the mean distance is less than `NEAR` of an even head's.
    5. mixed.

    Args:
        figures: of the head; None for a text of one token, where no head has a choice.
        even: of a head that spreads evenly on the same text.
    """
    if figures is None or even is None:
        return Role.ALONE
    repeats = {
        Role.INDUCTION: _lead_on_repeats(
            figures.induction, even.induction, figures.induction_control, figures.induction_queries
        ),
        Role.SAME: _lead_on_repeats(
            figures.same, even.same, figures.same_control, figures.same_queries
        ),
    }
    places = {
        Role.PREVIOUS: lead(figures.previous, even.previous),
        Role.ITSELF: lead(figures.itself, even.itself),
        Role.FIRST: lead(figures.first, even.first),
    }
    for leads in (repeats, places):
        best = max(leads, key=lambda role: leads[role])
        if leads[best] >= LEAD:
            return best
    if figures.spread >= WIDE:
        return Role.SPREAD
    return Role.LOCAL if figures.distance < NEAR * even.distance else Role.MIXED


def _lead_on_repeats(
    share: float | None, even: float | None, control: float | None, queries: int
) -> float:
    return min(lead(share, even), lead(share, control)) if queries >= ENOUGH else 0.0
