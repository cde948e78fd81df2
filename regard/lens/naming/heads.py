"""The scores and roles of a model's heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, overload

from regard._display import show
from regard.lens.naming.roles import ENOUGH, PatternScores, Role

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["INFORMATIVE", "SCORES", "HeadScores", "Heads", "over"]

SCORES = (
    "previous_token",
    "first_token",
    "current_token",
    "induction",
    "duplicate_token",
    "entropy",
    "distance",
)
"""Names of the scores that tables show and training runs keep; runs keep them in this order."""

_COLUMNS = [name.removesuffix("_token") for name in SCORES]
INFORMATIVE = (
    Role.INDUCTION,
    Role.DUPLICATE,
    Role.PREVIOUS,
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
    return " ".join([*cells, f"{scores.role} {scores.evidence}".rstrip()])
