"""The scores and roles of a model's heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, overload

from regard._display import show
from regard._extras import needing
from regard.record.roles import ENOUGH, PatternScores, Role

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["SCORES", "HeadScores", "Heads", "over"]

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
# Heads by how much there is to see in them; a tie goes to the earlier layer.
_INFORMATIVE = (
    Role.INDUCTION,
    Role.DUPLICATE,
    Role.PREVIOUS,
    Role.LOCAL,
    Role.MIXED,
    Role.CURRENT,
    Role.FIRST,
    Role.SPREAD,
    Role.ALONE,
)


@dataclass(frozen=True, kw_only=True)
class HeadScores(PatternScores):
    """One head of a model: where it is, its scores and what it does."""

    layer: int
    head: int
    role: Role
    """What the head does: the rule of `roles.role_of`."""


class Heads(Sequence[HeadScores]):
    """The scores of all heads, layer by layer."""

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

        Args:
            count: most heads to take.
        """
        ranked: list[tuple[int, int, HeadScores]] = []
        for order, role in enumerate(_INFORMATIVE):
            candidates = [scores for scores in self._scores if scores.role is role]
            candidates.sort(key=_purity, reverse=True)
            ranked += [(place, order, scores) for place, scores in enumerate(candidates)]
        ranked.sort(key=lambda entry: entry[:2])
        return [scores for _, _, scores in ranked[:count]]

    def frame(self) -> pd.DataFrame:
        """Lay them out as a pandas data frame, a row a head.

        Raises:
            ImportError: without pandas, which the extra ``record`` brings.
        """
        with needing("record"):
            import pandas as pd

        return pd.DataFrame(
            [
                {"layer": scores.layer, "head": scores.head, "role": scores.role.value}
                | {name: value for name, value in asdict(scores).items() if name != "role"}
                for scores in self._scores
            ]
        )

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
    ('of no token', 'over 3 tokens, too few to name a head', 'over 30 tokens of 80')
    """
    if queries == 0:
        return "of no token"
    text = f"over {queries} token{'s' if queries > 1 else ''}"
    if tokens is not None:
        text += f" of {tokens}"
    return text if queries >= ENOUGH else f"{text}, too few to name a head"


def _purity(scores: HeadScores) -> float:
    """How much a head does of what it is named for and nothing else."""
    if scores.spread is None:
        return 0.0
    if scores.role is Role.SPREAD:
        return scores.spread
    return (1 - scores.spread if scores.role.score is None else scores.share(scores.role)) or 0.0


def _line(scores: HeadScores) -> str:
    cells = [f"{f'{scores.layer}.{scores.head}':>5}"]
    for name, column in zip(SCORES, _COLUMNS, strict=True):
        value: float | None = getattr(scores, name)
        cells.append(f"{'–' if value is None else f'{value:.2f}':>{max(5, len(column))}}")
    return " ".join([*cells, scores.role])
