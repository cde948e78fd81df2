"""The difference between two atlases of one corpus: which heads changed, and what says so.

Both atlases read the same documents, so the difference is paired: what a document does to both
cancels. A score's difference is, to first order, a sum over documents of what each contributes to
one atlas less what it contributes to the other. Its variance is that of these contributions,
clustered by group of documents: an atlas keeps its sums by `sums.GROUPS` groups, since numbers of
every document would grow with the corpus. With fewer documents than groups each is a group of its
own; with more, a group is a larger cluster, which is as right (the random groups of Wolter 2007,
"Introduction to Variance Estimation", chapter 2), with 31 degrees of freedom at most.
What was not read over the corpus, or keeps no products, has a difference without an interval.

Axes: N heads of all layers, G groups of documents.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from regard._display import show
from regard._shapes import Float
from regard.errors import Error
from regard.lens.head_atlas.columns import COLUMNS
from regard.lens.head_atlas.scores import ESTIMATED, estimate
from regard.lens.head_atlas.state import State
from regard.lens.head_atlas.sums import DocumentSums
from regard.lens.naming.discoveries import false_discovery_rates, upper_tail
from regard.lens.naming.evidence import student
from regard.lens.naming.roles import ENOUGH, VARIED, Role

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["AtlasDifference", "Change"]

_RATE = 0.05  # the false discovery rate of a head that is said to have changed
_SHAPES = {Role.SPREAD: "entropy", Role.LOCAL: "distance"}  # roles without a share
_EQUAL = {
    "corpus_fingerprint": "the tokens of the corpus",
    "length": "the length of a window",
    "documents": "the number of documents",
}


class _Compared(Protocol):
    """What is compared of an `Atlas`, which has the method that makes the difference."""

    @property
    def state(self) -> State: ...
    @property
    def about(self) -> dict[str, Any]: ...
    @property
    def rows(self) -> list[dict[str, Any]]: ...


@dataclass(frozen=True, kw_only=True)
class Change:
    """How one number of one head differs between two atlases.

    Attributes:
        layer, head: the head.
        column: the number's name, as in `Atlas.columns`.
        before, after: the number in both.
        margin: the interval of 95 % of the difference is itself ± this; None where it isn't known.
        t: the difference over its standard error; None without a margin.
        rate: the smallest false discovery rate, over all heads and columns that have an interval,
            at which the difference is a discovery; None without a margin.

    Example:
        >>> from regard.lens import Change
        >>> round(Change(layer=0, head=2, column="resting", before=0.5, after=0.75).difference, 2)
        0.25
    """

    layer: int
    head: int
    column: str
    before: float
    after: float
    margin: float | None = None
    t: float | None = None
    rate: float | None = None

    @property
    def difference(self) -> float:
        """The number after, less the number before."""
        return self.after - self.before

    @property
    def evidence(self) -> float:
        """The magnitude of `t`; 0 where it isn't known."""
        return abs(self.t or 0.0)


class AtlasDifference:
    """What changed in each head between two atlases of one corpus; made by `Atlas.diff`.

    Args:
        before: the atlas of the model before.
        after: that of the model after.

    Raises:
        Error: for atlases of other corpora, lengths or numbers of heads.

    Example:
        >>> import regard
        >>> texts = ["The cat sat.", "Tom ran home.", "Tom had a red kite."]
        >>> atlas = regard.lens.atlas(regard.models.open(), texts, probes=False)
        >>> print(str(atlas.diff(atlas)).splitlines()[0])
        the model that comes with regard, before and after: none of 20 heads changed
    """

    def __init__(self, before: _Compared, after: _Compared) -> None:
        _require_same(before, after)
        self.before = before
        self.after = after

    @cached_property
    def changes(self) -> list[Change]:
        """Every number that both atlases have of a head, by evidence, the strongest first."""
        tested = _tests(self.before.state.sums, self.after.state.sums)
        names = [column.name for column in COLUMNS]
        if not self._reads_the_same_effects:
            names.remove("effect")
            tested.pop("effect", None)
        known = [one for own in tested.values() for one in own if one is not None]
        p_values = torch.tensor([one.p_value for one in known], dtype=torch.float64, device="cpu")
        rates = dict(zip(map(id, known), false_discovery_rates(p_values).tolist(), strict=True))
        found = []
        for name in names:
            own = tested.get(name, [None] * len(self.before.rows))
            for test, one, other in zip(own, self.before.rows, self.after.rows, strict=True):
                if one[name] is None or other[name] is None:
                    continue
                about = {} if test is None else {"margin": test.margin, "t": test.t}
                found.append(
                    Change(
                        layer=one["layer"],
                        head=one["head"],
                        column=name,
                        before=one[name],
                        after=other[name],
                        rate=rates.get(id(test)),
                        **about,
                    )
                )
        return sorted(found, key=lambda one: -one.evidence)

    @property
    def groups(self) -> int:
        """The number of groups of documents over which differences are paired."""
        sums = self.before.state.sums
        return len(sums.groups(ESTIMATED["resting"][0]))

    def discoveries(self, rate: float = _RATE) -> list[Change]:
        """Return the changes that hold although so many numbers of so many heads were tested.

        Of them at most a fraction `rate` is expected to be none: Benjamini and Hochberg 1995. A
        discovery need not be large; `Change.difference` says how large it is.

        Args:
            rate: the false discovery rate, between 0 and 1.

        Raises:
            ValueError: for another rate.

        Example:
            >>> import regard
            >>> texts = ["The cat sat.", "Tom ran home."]
            >>> atlas = regard.lens.atlas(regard.models.open(), texts, probes=False)
            >>> atlas.diff(atlas).discoveries()
            []
        """
        if not 0 <= rate <= 1:
            raise ValueError(f"rate is {rate}; expected a fraction between 0 and 1, such as 0.05")
        return [one for one in self.changes if one.rate is not None and one.rate <= rate]

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """A row a head, by evidence; those first whose role changed by a discovery.

        Each has the layer, head, roles, whether a number changed (`discovery`), the number with the
        strongest evidence (`column`) and its `t`; and each number's difference, its margin under
        "…_margin" and its false discovery rate under "…_rate". Of a head whose role changed the
        number is one on which either role rests.
        """
        rows = []
        for one, other in zip(self.before.rows, self.after.rows, strict=True):
            own = self.of(one["layer"], one["head"])
            roles = (Role(one["role"]), Role(other["role"]))
            strongest = own[0] if own and own[0].evidence else None
            deciding = self._deciding(own, roles)
            shown = strongest if deciding is None else deciding
            row: dict[str, Any] = {
                "layer": one["layer"],
                "head": one["head"],
                "role_before": roles[0].value,
                "role_after": roles[1].value,
                "role_changed": deciding is not None,
                "discovery": any(_is_discovery(change) for change in own),
                "column": None if shown is None else shown.column,
                "t": None if shown is None else shown.t,
            }
            for column in COLUMNS:
                change = next((change for change in own if change.column == column.name), None)
                row[column.name] = None if change is None else change.difference
                if change is not None and change.margin is not None:
                    row[f"{column.name}_margin"] = change.margin
                    row[f"{column.name}_rate"] = change.rate
            rows.append(row)
        return sorted(rows, key=lambda row: (not row["role_changed"], -abs(row["t"] or 0.0)))

    def of(self, layer: int, head: int) -> list[Change]:
        """Return the changes of one head, by evidence; empty for a head that isn't there.

        Example:
            >>> import regard
            >>> texts = ["The cat sat.", "Tom ran home."]
            >>> atlas = regard.lens.atlas(regard.models.open(), texts, probes=False)
            >>> {change.difference for change in atlas.diff(atlas).of(0, 1)}
            {0.0}
        """
        return self._by_head.get((layer, head), [])

    def frame(self) -> pd.DataFrame:
        """Return the rows as a pandas data frame."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def __repr__(self) -> str:
        text: str = show("atlas_difference_text", self)
        return text

    @cached_property
    def _by_head(self) -> Mapping[tuple[int, int], list[Change]]:
        found: dict[tuple[int, int], list[Change]] = {}
        for change in self.changes:
            found.setdefault((change.layer, change.head), []).append(change)
        return found

    @property
    def _reads_the_same_effects(self) -> bool:
        one, other = (atlas.state.about for atlas in (self.before, self.after))
        return all(one[key] == other[key] for key in ("seed", "effects"))

    @staticmethod
    def _deciding(own: Sequence[Change], roles: tuple[Role, Role]) -> Change | None:
        """Return the discovery for which a head's role changed; None if there is none."""
        if roles[0] is roles[1]:
            return None
        columns = {_SHAPES.get(role, role.score) for role in roles}
        return next((one for one in own if one.column in columns and _is_discovery(one)), None)


@dataclass(frozen=True, eq=False)
class _Test:
    margin: float
    t: float
    p_value: float


def _tests(before: DocumentSums, after: DocumentSums) -> dict[str, list[_Test | None]]:
    """Test each head's difference in each column that is summed by documents; None for too few."""
    found = {}
    for column, (name, score) in ESTIMATED.items():
        if name not in before or name not in after or before.groups(name) != after.groups(name):
            continue
        one, other = estimate(before, name, score), estimate(after, name, score)
        contributed = _contributed(after, name, other.weights)
        contributed = contributed - _contributed(before, name, one.weights)
        groups = len(contributed)
        if groups < VARIED:
            continue
        error = (contributed.square().sum(0) * groups / (groups - 1)).sqrt()
        margin = student(torch.full_like(error, groups - 1)) * error
        enough = torch.minimum(one.queries, other.queries) >= ENOUGH
        found[column] = [
            _Test(half, t := _ratio(difference, standard), 2 * upper_tail(abs(t), groups - 1))
            if known
            else None
            for difference, standard, half, known in zip(
                *(own.tolist() for own in (other.value - one.value, error, margin, enough)),
                strict=True,
            )
        ]
    return found


def _contributed(
    sums: DocumentSums, name: str, weights: Float[Tensor, "N w"]
) -> Float[Tensor, "G N"]:
    """Return what each group of documents contributes to a score, less its share of it."""
    return (sums.by_group(name) * weights).sum(-1)


def _ratio(difference: float, error: float) -> float:
    if difference == 0:
        return 0.0
    return difference / error if error > 0 else math.copysign(math.inf, difference)


def _is_discovery(change: Change) -> bool:
    return change.rate is not None and change.rate <= _RATE


def _require_same(before: _Compared, after: _Compared) -> None:
    one, other = before.state, after.state
    for key, what in _EQUAL.items():
        if one.about[key] != other.about[key]:
            raise Error(
                f"the atlases differ in {what} ({key}): {one.about[key]!r} before and "
                f"{other.about[key]!r} after; make both of the same corpus with the same options"
            )
    if one.heads != other.heads:
        raise Error(
            f"the models differ in their heads: {_heads(one.heads)} before and "
            f"{_heads(other.heads)} after; only models of one shape can be compared"
        )
    if one.sums.documents != other.sums.documents:
        raise Error(
            f"one atlas has read {one.sums.documents} of the documents and the other "
            f"{other.sums.documents}: read or join all shards of both"
        )


def _heads(places: Sequence[tuple[int, int]]) -> str:
    layers = len({layer for layer, _ in places})
    return f"{len(places)} of {layers} layer{'s' * (layers != 1)}"
