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
"""Roles by how much there is to see in their heads."""


@dataclass(frozen=True, kw_only=True)
class HeadScores(PatternScores):
    """One head of a model: where it is, its scores, what it does and how sure that is."""

    layer: int
    head: int
    role: Role
    """What the head does: the rule of `roles.role_of`."""
    score: float | None = None
    """Of the role, against controls (`roles`); where the role is open, of the one that is
    `undecided`; None for a role that rests on no score."""
    margin: float | None = None
    """The interval of 95 % is the score ± this; None where there are too few queries for one."""
    queries: int | None = None
    """How many that is measured over; of a role that rests on no score, how many there are."""
    undecided: Role | None = None
    """A role that would come first, and of which the text can't tell whether the head has it."""

    @property
    def evidence(self) -> str:
        """What the name rests on, in words; empty for a text of one token.

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
        """The score with its interval of 95 %, such as ``0.64 ± 0.08``; empty without a score."""
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
        """Number of queries that induction and duplicate tokens are measured over.

        None where the tokens are not known.
        """
        if not self._scores or self._scores[-1].induction_queries is None:
            return None
        last = self._scores[-1]
        return last.induction_queries or 0, last.duplicate_token_queries or 0

    def at(self, layer: int, head: int) -> HeadScores:
        """One head, by its numbers.

        Raises:
            IndexError: for a head that was not scored.
        """
        for scores in self._scores:
            if (scores.layer, scores.head) == (layer, head):
                return scores
        raise IndexError(f"layer {layer} has no head {head} among the {len(self)} scored")

    def most_informative(self, count: int) -> list[HeadScores]:
        """Take the heads with most to see: the best of each role, then the second best, and so on.

        A tie goes to the earlier layer.

        Args:
            count: most heads to take.
        """
        ranked: list[tuple[int, int, HeadScores]] = []
        for order, role in enumerate(INFORMATIVE):
            candidates = [scores for scores in self._scores if scores.role is role]
            candidates.sort(key=_purity, reverse=True)
            ranked += [(place, order, scores) for place, scores in enumerate(candidates)]
        ranked.sort(key=lambda entry: entry[:2])
        return [scores for _, _, scores in ranked[:count]]

    def frame(self) -> pd.DataFrame:
        """Lay them out as a pandas data frame, a row a head."""
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
    """Say how many queries a score on repeats rests on, and whether a head is named after them.

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
    """How much a head does of what it is named for and nothing else."""
    if scores.score is not None:
        return scores.score
    return 0.0 if scores.spread is None else 1 - scores.spread


def _row(scores: HeadScores) -> dict[str, Any]:
    """All fields, those of the name first."""
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
