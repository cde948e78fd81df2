"""The scores and roles of a model's heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, overload

import torch

from regard._display import show
from regard.lens.naming.discoveries import false_discovery_rates
from regard.lens.naming.roles import ENOUGH, PatternScores, Role
from regard.lens.sink_keys import RESTING

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["INFORMATIVE", "SCORES", "HeadScores", "Heads", "over"]

SCORES = (
    "resting",
    "previous_token",
    "first_token",
    "current_token",
    "induction",
    "duplicate_token",
    "separator",
    "next_token",
    "entropy",
    "distance",
)
"""Names of the scores that tables show and training runs keep; runs keep them in this order."""

_COLUMNS = [name.removesuffix("_token") for name in SCORES]
INFORMATIVE = (
    Role.INDUCTION,
    Role.DUPLICATE,
    Role.PREVIOUS,
    Role.NEXT,
    Role.SEPARATOR,
    Role.LOCAL,
    Role.BETWEEN,
    Role.TOO_SHORT,
    Role.MIXED,
    Role.CURRENT,
    Role.FIRST,
    Role.SPREAD,
    Role.ALONE,
)
"""Roles, the most informative first."""


@dataclass(frozen=True, kw_only=True)
class HeadScores(PatternScores):
    """One head of a model: its place, its scores, its role and the evidence for it."""

    layer: int
    head: int
    role: Role
    """What the head does, by the rule of `roles.role_of`."""
    score: float | None = None
    """Score of the role against controls (`roles`); if the role is open, of the `undecided` one;
    None for a role without a score."""
    margin: float | None = None
    """Half width of the score's 95 % interval; None for too few queries."""
    queries: int | None = None
    """Number of queries that the score is measured over; for a role without one, of all queries."""
    undecided: Role | None = None
    """A role of higher priority that the text can neither confirm nor exclude."""
    p_value: float | None = None
    """One-sided p-value of the role's lead, or the smallest of all relations, against a lead of
    0.2, times the number of relations that were tested; None where none was."""
    sinks: tuple[int, ...] | None = None
    """The keys on which the head rests, in order; None for several texts, or one token."""
    copying: float | None = None
    """`circuits.copying` of an induction head, where `probe` knows the model's matrices."""

    @property
    def words(self) -> str:
        """Describe what the head does, and how much of its weight rests meanwhile.

        >>> from regard.lens.naming.roles import Role
        >>> HeadScores(layer=0, head=0, role=Role.INDUCTION, resting=0.874).words
        'rests 87 %; else: induction'
        """
        if self.role in (Role.FIRST, Role.ALONE) or (self.resting or 0) < RESTING:
            return self.role.value
        percent = round(100 * (self.resting or 0))
        rests = "over 99" if percent > 99 else str(percent)
        return f"rests {rests} %; else: {self.role}"

    @property
    def evidence(self) -> str:
        """Describe the evidence for the role; empty for a text of one token.

        >>> from regard.lens.naming.roles import Role
        >>> HeadScores(layer=0, head=0, role=Role.FIRST, score=0.6, margin=0.12, queries=9).evidence
        '0.60 ± 0.12 over 9 queries'
        """
        if self.queries is None:
            return ""
        words = f"over {self.queries} quer{'y' if self.queries == 1 else 'ies'}"
        if self.score is None:
            return words
        words = f"{self.estimate} {words}"
        return (
            f"{self.undecided}? {words}"
            if self.role.is_open and self.undecided is not None
            else words
        )

    @property
    def estimate(self) -> str:
        """Return the score with its 95 % interval, such as ``0.64 ± 0.08``; empty without one."""
        if self.score is None:
            return ""
        return f"{self.score:.2f}" + ("" if self.margin is None else f" ± {self.margin:.2f}")


class Heads(Sequence[HeadScores]):
    """The scores of all heads, layer by layer.

    Example:
        >>> import regard, torch
        >>> from regard.nn import MultiHeadAttention
        >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
        >>> with regard.record(layer) as recording:
        ...     _ = layer(torch.randn(1, 5, 6))
        >>> [(head.layer, head.head) for head in regard.lens.heads(recording)]
        [(0, 0), (0, 1)]
    """

    def __init__(self, scores: Sequence[HeadScores]) -> None:
        self._scores = tuple(scores)

    @overload
    def __getitem__(self, index: int) -> HeadScores: ...
    @overload
    def __getitem__(self, index: slice) -> Heads: ...
    def __getitem__(self, index: int | slice) -> HeadScores | Heads:
        return Heads(self._scores[index]) if isinstance(index, slice) else self._scores[index]

    def __len__(self) -> int:
        return len(self._scores)

    @property
    def repeats(self) -> tuple[int, int] | None:
        """Return the numbers of queries that induction and duplicate token are measured over.

        None if the tokens are not known.
        """
        if not self._scores or self._scores[-1].induction_queries is None:
            return None
        last = self._scores[-1]
        return last.induction_queries or 0, last.duplicate_token_queries or 0

    def at(self, layer: int, head: int) -> HeadScores:
        """Return one head by its indices.

        Raises:
            IndexError: for a head that was not scored.
        """
        for scores in self._scores:
            if (scores.layer, scores.head) == (layer, head):
                return scores
        raise IndexError(f"layer {layer} has no head {head} among the {len(self)} scored")

    def most_informative(self, count: int) -> list[HeadScores]:
        """Return the most informative heads: the best of each role, then the second best, etc.

        A tie goes to the earlier layer.

        Args:
            count: maximum number of heads.
        """
        ranked: list[tuple[int, int, HeadScores]] = []
        for order, role in enumerate(INFORMATIVE):
            candidates = [scores for scores in self._scores if scores.role is role]
            candidates.sort(key=_purity, reverse=True)
            ranked += [(place, order, scores) for place, scores in enumerate(candidates)]
        ranked.sort(key=lambda entry: entry[:2])
        return [scores for _, _, scores in ranked[:count]]

    def discoveries(self, rate: float = 0.05) -> list[HeadScores]:
        """Return the heads whose relation holds although so many heads were tested.

        Of 270 heads without any relation, a test of each at 5 % names some. Of the heads that are
        returned, at most a fraction `rate` is expected to be named wrongly: Benjamini and Hochberg
        1995, over the p-values of all heads (`HeadScores.p_value`). `spread evenly`, `nearby
        tokens` and `mixed` are no relations and never among them.

        Args:
            rate: the false discovery rate, between 0 and 1.

        Raises:
            ValueError: for another rate.

        Example:
            >>> from regard.lens.naming.roles import Role
            >>> Heads([HeadScores(layer=0, head=n, role=Role.PREVIOUS, score=0.5, p_value=p)
            ...        for n, p in enumerate((0.001, 0.04, 0.06))]).discoveries()[-1].head
            0
        """
        if not 0 <= rate <= 1:
            raise ValueError(f"rate is {rate}; expected a fraction between 0 and 1, such as 0.05")
        tested = [one for one in self._scores if one.p_value is not None]
        values = [one.p_value for one in tested]
        rates = false_discovery_rates(torch.tensor(values, dtype=torch.float64, device="cpu"))
        named = zip(tested, rates.tolist(), strict=True)
        return [one for one, own in named if own <= rate and one.role.score is not None]

    def frame(self) -> pd.DataFrame:
        """Return a pandas data frame with a row per head."""
        import pandas as pd

        return pd.DataFrame([_row(scores) for scores in self._scores])

    def _repr_html_(self) -> str:
        html: str = show("heads_html", self)
        return html

    def __repr__(self) -> str:
        lines = [" ".join([" head", *(f"{name:>5}" for name in _COLUMNS), "role"])]
        lines += [_line(scores) for scores in self._scores]
        if self.repeats is not None:
            induction, duplicates = map(over, self.repeats)
            lines.append(f"induction: {induction}; duplicate token: {duplicates}")
        return "\n".join(lines)


def over(queries: int, tokens: int | None = None) -> str:
    """Describe how many queries a score on repeats has, and whether they suffice for a role.

    >>> over(0), over(3), over(30, 80)
    ('of no query', 'over 3 queries, too few to tell', 'over 30 queries of 80')
    """
    if queries == 0:
        return "of no query"
    text = f"over {queries} quer{'ies' if queries > 1 else 'y'}"
    if tokens is not None:
        text += f" of {tokens}"
    return text if queries >= ENOUGH else f"{text}, too few to tell"


def _purity(scores: HeadScores) -> float:
    """Return a number by which heads of one role are ranked."""
    if scores.score is not None:
        return scores.score
    return 0.0 if scores.spread is None else 1 - scores.spread


def _row(scores: HeadScores) -> dict[str, Any]:
    """Return all fields, those of the role first."""
    values = asdict(scores)
    first = ("layer", "head", "role", "score", "margin", "queries", "undecided")
    names = [*first, *(name for name in values if name not in first)]
    return {
        name: value.value if isinstance(value := values[name], Role) else value for name in names
    }


def _line(scores: HeadScores) -> str:
    cells = [f"{f'{scores.layer}.{scores.head}':>5}"]
    for name, column in zip(SCORES, _COLUMNS, strict=True):
        value: float | None = getattr(scores, name)
        cells.append(f"{'–' if value is None else f'{value:.2f}':>{max(5, len(column))}}")
    copying = "" if scores.copying is None else f"; copying {scores.copying:.2f}"
    return " ".join([*cells, f"{scores.words} {scores.evidence}{copying}".rstrip()])
