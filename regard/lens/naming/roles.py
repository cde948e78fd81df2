"""The role of a head on a text: a rule over its scores.

A share of weight says little by itself: on three tokens every head puts much on the first. So each
share is held against **controls**, what the same keys would get of a head that does something else,
and all are taken **beside the head's sinks**: the keys on which it rests by the rule of
`regard.lens.sinks` are left out, and the rest of each row is renormalized (`Pattern.without`). A
head that rests has little weight left, and that little says what it is for. The weight that rests
is a share of its own, `resting`. The controls:

- a **uniform head**, which spreads evenly over all that a query sees;
- the **other queries** of the same head: what the same keys get from queries of which they are not
  the previous token, the current one, or a target (`repeats.ControlledRepeats`). A head that looks
  at one key from everywhere is not an induction head where that key happens to be a successor;
- **shuffled text**, for `induction` and `duplicate_token`: what the targets would get, were the
  keys before each query shuffled among those about as far from it, and the weights as they are. A
  head that looks at what is near is not an induction head where successors are near.

The **lead** is the part of the weight which the strongest control leaves elsewhere that the head
brings here: 0 for a head that does as the control does, 1 for one that puts all its weight here.
Separators and the first token have no other queries, since all look at the same ones, and where a
token stands does not change when tokens are shuffled: there the other controls decide. Nor is the
model run on the shuffled text, which a recording could not: so a head that looks a fixed distance
back, where all repeats of a text are that distance apart, is taken for an induction head.

A lead is an estimate from the queries of one text. Its interval of 95 % is from the variance
between different tokens, because queries of one token share their targets: cluster-robust, with
Student's t for as many tokens less one (Cameron and Miller 2015, "A Practitioner's Guide to
Cluster-Robust Inference", sections II and VI). A head is named where the whole interval is `LEAD`
or more. The score of `induction` is the prefix matching of Olsson et al. 2022,
arXiv:2209.11895; they take it on long random texts, where such keys do not occur, and the controls
make up for it on short ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "ENOUGH",
    "LEAD",
    "MOSTLY",
    "NEAR",
    "VARIED",
    "WIDE",
    "Evidence",
    "PatternScores",
    "Role",
    "role_of",
]

LEAD = 0.2
"""A head is named after a relation of which the lead's whole interval is at least this: it moves a
fifth of the weight that nothing else explains, and at most four relations can do so at once."""

ENOUGH = 8
"""Fewest queries after which a head is named."""

VARIED = 4
"""Fewest different tokens among them: the variance between three is hardly known."""

NEAR = 0.5
"""A head is local when it looks back less than this share of a uniform head's distance."""

WIDE = 0.8
"""A head spreads when its entropy is at least this share of the highest possible."""


MOSTLY = 0.5
"""A head without another relation is named after the first token only if its lead there is at least
this."""


class Role(StrEnum):
    """What a head does on a text, in the words that are shown."""

    INDUCTION = "induction"
    DUPLICATE = "duplicate token"
    PREVIOUS = "previous token"
    NEXT = "next token"
    CURRENT = "current token"
    SEPARATOR = "separator"
    FIRST = "first token"
    LOCAL = "nearby tokens"
    SPREAD = "spread evenly"
    MIXED = "mixed"
    BETWEEN = "between two names"
    TOO_SHORT = "text too short to tell"
    ALONE = "no choice"

    @property
    def meaning(self) -> str:
        """The role in a sentence."""
        return _MEANINGS[self]

    @property
    def is_open(self) -> bool:
        """Whether it is left open what the head does; then it may do what is `undecided`."""
        return self in (Role.BETWEEN, Role.TOO_SHORT)

    @property
    def score(self) -> str | None:
        """Name of the share of `PatternScores` that the role rests on; None if on no share."""
        relations = (*_OF_REPEATS, *_OF_PLACES, Role.FIRST)
        return self.value.replace(" ", "_") if self in relations else None


_OF_REPEATS = (Role.INDUCTION, Role.DUPLICATE)
_OF_PLACES = (Role.PREVIOUS, Role.NEXT, Role.CURRENT, Role.SEPARATOR)

_MEANINGS = {
    Role.INDUCTION: "where its token stood before, it looks at what came next",
    Role.DUPLICATE: "it looks at earlier copies of its token",
    Role.PREVIOUS: "it looks at the token before",
    Role.NEXT: "it looks at the token after",
    Role.CURRENT: "it looks at the token itself",
    Role.SEPARATOR: "it looks at punctuation and special tokens",
    Role.FIRST: "it rests on the first token",
    Role.LOCAL: "it looks at tokens nearby",
    Role.SPREAD: "it spreads over all tokens that it may see",
    Role.MIXED: "it does no single one of these",
    Role.BETWEEN: "its score is so near the limit of a role that this text can't decide",
    Role.TOO_SHORT: "it may have a role, but this text has too few tokens, or too few repeats",
    Role.ALONE: "a single token can only attend to itself",
}


@dataclass(frozen=True, kw_only=True)
class PatternScores:
    """Scores of one head's pattern, each a mean over queries and over the sequences of a batch.

    Shares are between 0 and 1: `resting` and `first_token` of a query's whole weight, the others of
    the weight that is not on the head's sinks. Padding counts nowhere, nor does the first token of
    a sequence, nor a query that sees but one key beside the sinks and has no choice. All are None
    for a text of one token.
    """

    resting: float | None = None
    """Share on the keys on which the head rests, by the rule of `regard.lens.sinks`; 0 without."""

    previous_token: float | None = None
    """Share on the token before: a positional head (Voita et al. 2019, arXiv:1905.09418)."""
    next_token: float | None = None
    """Share on the token after; None where no query sees it."""
    first_token: float | None = None
    """Share on the first token, mostly a sink (Xiao et al. 2023, arXiv:2309.17453, section 3.1)."""
    current_token: float | None = None
    """Share on the query's own position."""
    separator: float | None = None
    """Share on punctuation, line breaks and special tokens (`separators.is_separator`), the first
    token left out (Clark et al. 2019, arXiv:1906.04341, section 3.2); None where tokens are not
    known or fewer than `VARIED` are some: one full stop may be looked at for itself."""
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
    induction_others: float | None = None
    """What the keys of `induction` get from other queries; None where there is no share."""
    induction_shuffled: float | None = None
    """What they would get with the text shuffled."""
    induction_queries: int | None = None
    """How many queries `induction` is measured over; None where tokens are not known."""
    duplicate_token_others: float | None = None
    """As for induction."""
    duplicate_token_shuffled: float | None = None
    """As for induction."""
    duplicate_token_queries: int | None = None
    """As for induction."""

    def share(self, role: Role) -> float | None:
        """Return the share that a role rests on; None where it is not known, or rests on none."""
        value: float | None = getattr(self, role.score) if role.score is not None else None
        return value


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """How much speaks for one role of a head."""

    score: float
    """The lead of a relation; of `spread evenly` the spread; of `nearby tokens` the part of a
    uniform head's distance by which it looks less far."""
    margin: float | None
    """The interval of 95 % is the score ± this; None where the queries are fewer than `ENOUGH` or
    their different tokens fewer than `VARIED`."""
    queries: int
    """How many it was measured over."""
    p_value: float | None = None
    """Of a relation, the probability of such a score or a higher one if the lead were `LEAD`; None
    without a margin."""

    @property
    def leads(self) -> bool:
        """Whether the whole interval is a lead of `LEAD`."""
        return self.margin is not None and self.score - self.margin >= LEAD

    @property
    def may_lead(self) -> bool:
        """Whether some of the interval is; of too few queries for one, whether the score is."""
        return self.score + (self.margin or 0) >= LEAD

    @property
    def is_precise(self) -> bool:
        """Whether the interval reaches no further than `LEAD`.

        A head without a name is then not short of text: its score is near the limit.
        """
        return self.margin is not None and self.margin <= LEAD


def role_of(evidence: Mapping[Role, Evidence]) -> tuple[Role, Role | None]:
    """Name what a head does, and what it may do besides.

    In this order, the first that holds:

    1. induction or duplicate token, whichever leads more, of those of which the whole interval is a
       lead of `LEAD` or more. They come first because they are measured only where the text repeats
       itself: such a head attends elsewhere the rest of the time.
    2. previous, next or current token, or separator, likewise.
    3. first token, likewise, if its lead is at least `MOSTLY`. It comes after all other relations,
       which are measured beside it; a head that puts less there is named by its shape.
    4. text too short to tell, if all queries are fewer than `ENOUGH`.
    5. spread evenly, if the entropy is at least `WIDE` of the highest possible.
    6. nearby tokens, if the mean distance is at most `NEAR` of a uniform head's.
    7. if `LEAD` lies within the interval of one of those leads, or one without an interval is
       above it: between two names, that relation and mixed, where the interval is as narrow as
       `Evidence.is_precise` says; else text too short to tell.
    8. mixed.

    Spread and nearness describe a shape, which every head has more or less of: their score decides,
    and the interval says how well it is known.

    Args:
        evidence: for each role that was measured; empty for a text of one token.

    Returns:
        The role; and the first relation that comes before it and is left undecided as 6 says, or
        None.
    """
    if not evidence:
        return Role.ALONE, None
    undecided = None
    rests = Role.FIRST in evidence and evidence[Role.FIRST].score >= MOSTLY
    for group in (_OF_REPEATS, _OF_PLACES, (Role.FIRST,) if rests else ()):
        measured = [role for role in group if role in evidence]
        if leading := [role for role in measured if evidence[role].leads]:
            return _highest(leading, evidence), undecided
        if undecided is None and (open_ := [r for r in measured if evidence[r].may_lead]):
            undecided = _highest(open_, evidence)
    if max(one.queries for one in evidence.values()) < ENOUGH:
        return Role.TOO_SHORT, undecided
    if Role.SPREAD in evidence and evidence[Role.SPREAD].score >= WIDE:
        return Role.SPREAD, undecided
    if Role.LOCAL in evidence and evidence[Role.LOCAL].score >= 1 - NEAR:
        return Role.LOCAL, undecided
    if undecided is None:
        return Role.MIXED, None
    return (Role.BETWEEN if evidence[undecided].is_precise else Role.TOO_SHORT), undecided


def _highest(roles: Sequence[Role], evidence: Mapping[Role, Evidence]) -> Role:
    return max(roles, key=lambda role: evidence[role].score)
