"""What the terminal shows of keys: weights, or the entries of another view, with its words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from regard.lens.naming.heads import HeadScores
from regard.lens.view_names import VIEWS, View
from regard.view.terminal import figure_format

__all__ = ["WEIGHTS", "Entries"]


@dataclass(frozen=True)
class Entries:
    """The entries of a view, ``(L, S)`` of each head, and how they are said and drawn."""

    view: View = VIEWS["weight"]
    read: Callable[[HeadScores], Tensor] | None = None
    """Returns the entries of a head, of the first queries at least; None for the weights."""

    @property
    def are_weights(self) -> bool:
        """Whether the rows are weights, which add up to 1."""
        return self.view.name in ("weight", "without")

    def what(self, token: str) -> str:
        """Return what is shown of one token, as the start of a heading."""
        return {
            "weight": f"What {token} attends to",
            "moved": f"What {token} gets most from",
            "toward": f"What adds to the answer at {token}, or takes from it",
            "without": f"What {token} attends to beside a sink",
        }[self.view.name]

    @property
    def columns(self) -> tuple[str, str]:
        """Return the headings of a query's first key, and of the next."""
        if self.are_weights:
            return "attends most to", "then to"
        return ("gets most from", "then from") if self.view.name == "moved" else ("most by", "then")

    @property
    def title(self) -> str:
        """Return the heading of a column of entries."""
        return "added" if self.view.name == "toward" else self.view.name

    def numbers(self, most: float) -> str:
        """Return the format of entries that are at most so large."""
        return ".2f" if self.are_weights else figure_format(most)

    def part(self, entry: float, most: float) -> float:
        """Return the size of an entry, as a part of weight 1, or of the largest of a view."""
        return abs(entry) if self.are_weights else abs(entry) / (most or 1.0)


WEIGHTS = Entries()
"""The weights themselves."""
