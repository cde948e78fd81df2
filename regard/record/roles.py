"""The role of a head on a text: a rule over its scores.

A share of weight says little by itself: on three tokens every head puts much on the first. So each
share is held against the one of a head that spreads evenly over all it sees. The **lead** is the
part of what a uniform head leaves: 0 for a head that spreads evenly, 1 for one that puts all its
weight there.

Shares on earlier copies and on what followed them are held against a second one: what the same keys
get from the other queries of the same head (`repeats.Controls`). A head that looks at one key from
everywhere is no induction head where that key happens to be a successor. The score is the prefix
matching of Olsson et al. 2022, arXiv:2209.11895; they take it on long random texts, where such keys
do not occur, and this makes up for it on short ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["ENOUGH", "LEAD", "NEAR", "WIDE", "PatternScores", "Role", "lead", "role_of"]

LEAD = 0.25
"""Least lead that names a head. Above a quarter of its free weight no head does it by accident,
and at most three relations can reach it at once."""

ENOUGH = 8
"""Fewest queries after which a head is named for what it does with repeats. Their shares scatter by
about 0.2 in induction heads, so that the mean of eight is known to 0.07: `LEAD` is three times
that, and more."""

NEAR = 0.5
"""A head is local when it looks back less than this share of a uniform head's distance."""

WIDE = 0.8
"""A head spreads when its entropy is at least this share of the highest possible."""


class Role(StrEnum):
    """What a head does on a text, in the words that are shown."""

    INDUCTION = "induction"
    DUPLICATE = "duplicate token"
    PREVIOUS = "previous token"
    CURRENT = "current token"
    FIRST = "first token"
    LOCAL = "nearby tokens"
    SPREAD = "spread evenly"
    MIXED = "mixed"
    ALONE = "no choice"

    @property
    def meaning(self) -> str:
        """The role in a sentence."""
        return _MEANINGS[self]

    @property
    def score(self) -> str | None:
        """Name of the share of `PatternScores` that the role rests on; None if on no share."""
        return self.value.replace(" ", "_") if self in (*_OF_REPEATS, *_OF_PLACES) else None


_OF_REPEATS = (Role.INDUCTION, Role.DUPLICATE)
_OF_PLACES = (Role.PREVIOUS, Role.CURRENT, Role.FIRST)

_MEANINGS = {
    Role.INDUCTION: "where its token stood before, it looks at what came next",
    Role.DUPLICATE: "it looks at earlier copies of its token",
    Role.PREVIOUS: "it looks at the token before",
    Role.CURRENT: "it looks at the token itself",
    Role.FIRST: "it rests on the first token",
    Role.LOCAL: "it looks at tokens nearby",
    Role.SPREAD: "it spreads over all tokens that it may see",
    Role.MIXED: "it does no single one of these",
    Role.ALONE: "a single token can only attend to itself",
}


@dataclass(frozen=True, kw_only=True)
class PatternScores:
    """Scores of one head's pattern, each a mean over queries and over the sequences of a batch.

    Shares are of a query's weight, between 0 and 1. Padding counts nowhere, nor does the first
    token of a sequence, which has no choice. All are None for a text of one token.
    """

    previous_token: float | None = None
    """Share on the token before: a positional head (Voita et al. 2019, arXiv:1905.09418)."""
    first_token: float | None = None
    """Share on the first token, a sink (Xiao et al. 2023, arXiv:2309.17453, section 3.1)."""
    current_token: float | None = None
    """Share on the query's own position."""
    induction: float | None = None
    """Share on the tokens that followed earlier copies of the query's token, over the queries that
    have any (Olsson et al. 2022, arXiv:2209.11895, section on prefix matching); None where tokens
    are not known or none repeats. The position before the query's counts as previous only."""
    duplicate_token: float | None = None
    """Share on earlier copies of the query's token, over the queries that have any (Wang et al.
    2022, arXiv:2211.00593: duplicate token heads); None as for induction."""
    entropy: float | None = None
    """Entropy of a row, in nats."""
    distance: float | None = None
    """How far away the weight lies, in tokens."""
    spread: float | None = None
    """Entropy of a row, as a share of the highest that its number of keys allows."""
    induction_control: float | None = None
    """What the keys of `induction` get from the other queries; None where there is no share."""
    induction_queries: int | None = None
    """How many queries `induction` is measured over; None where tokens are not known."""
    duplicate_token_control: float | None = None
    """As for induction."""
    duplicate_token_queries: int | None = None
    """As for induction."""

    def share(self, role: Role) -> float | None:
        """The share that a role rests on; None where it is not known, or rests on none."""
        value: float | None = getattr(self, role.score) if role.score is not None else None
        return value


def lead(share: float | None, uniform: float | None) -> float:
    """Part of the weight that a uniform head leaves elsewhere and this one brings here; at most 1.

    >>> round(lead(0.6, 0.2), 3), lead(0.2, 0.2), lead(None, None)
    (0.5, 0.0, 0.0)
    """
    if share is None or uniform is None or uniform >= 1:
        return 0.0
    return (share - uniform) / (1 - uniform)


def role_of(scores: PatternScores, uniform: PatternScores) -> Role:
    """Name what a head does.

    In this order, the first that holds:

    1. induction or duplicate token, whichever leads more, if that lead is at least `LEAD`, over a
       uniform head and over what the same keys get from other queries, and rests on at least
       `ENOUGH` queries. They come first because they are measured only where the text repeats
       itself: such a head attends elsewhere the rest of the time, mostly to the first token.
    2. previous, current or first token, whichever leads most, by the same threshold.
    3. spread evenly, if the entropy is at least `WIDE` of the highest possible.
    4. nearby tokens, if the mean distance is less than `NEAR` of a uniform head's.
    5. mixed.

    Args:
        scores: of the head.
        uniform: of a head that spreads evenly on the same text.
    """
    if scores.spread is None or scores.distance is None or uniform.distance is None:
        return Role.ALONE
    repeats = {role: _lead_on_repeats(role, scores, uniform) for role in _OF_REPEATS}
    places = {role: lead(scores.share(role), uniform.share(role)) for role in _OF_PLACES}
    for leads in (repeats, places):
        best = max(leads, key=lambda role: leads[role])
        if leads[best] >= LEAD:
            return best
    if scores.spread >= WIDE:
        return Role.SPREAD
    return Role.LOCAL if scores.distance < NEAR * uniform.distance else Role.MIXED


def _lead_on_repeats(role: Role, scores: PatternScores, uniform: PatternScores) -> float:
    if (getattr(scores, f"{role.score}_queries") or 0) < ENOUGH:
        return 0.0
    share = scores.share(role)
    return min(
        lead(share, uniform.share(role)), lead(share, getattr(scores, f"{role.score}_control"))
    )
