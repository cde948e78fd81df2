"""The numbers of a head over a corpus, from the sums over its documents.

A share or a mean is Σ share / Σ queries over all documents; its interval of 95 % is clustered by
document, since the queries of one text have much in common.

Axes: N heads of all layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard._shapes import Float
from regard.lens.head_atlas import headvis
from regard.lens.head_atlas.columns import COLUMNS
from regard.lens.head_atlas.layer_reading import CONTROLS, DISTANCES, KINDS
from regard.lens.head_atlas.sums import DocumentSums, variance
from regard.lens.naming.evidence import Score, evidence, itself, lead
from regard.lens.naming.head_scores import SCORE_OF, head_of
from regard.lens.naming.heads import Heads, HeadScores
from regard.lens.naming.roles import Evidence, PatternScores, Role

__all__ = ["ESTIMATED", "Estimate", "estimate", "heads_of", "rows_of"]

_MOST = 0.9  # of the weight, within whose distance a head's window ends
_FAR = 128  # tokens from which a key is far


ESTIMATED: Mapping[str, tuple[str, Score]] = {
    **{
        name: (f"relation.{name}", score)
        for role, (name, score) in SCORE_OF.items()
        if role not in (Role.SPREAD, Role.LOCAL)
    },
    **{name: (f"relation.{name}", itself) for name in ("resting", "entropy", "distance")},
    **{name: (name, itself) for name in ("moved", "toward", "effect")},
}
"""The columns with an interval by document: the name of each one's sums, and its score."""


class Estimate(NamedTuple):
    """A score of each head, linearised in the sums that it is made of.

    The sum of ⟨weights, numbers⟩ over all documents is 0; over some of them it is what they
    contribute to the score.
    """

    value: Float[Tensor, " N"]
    weights: Float[Tensor, "N w"]
    queries: Float[Tensor, " N"]


def heads_of(sums: DocumentSums, places: tuple[tuple[int, int], ...]) -> Heads:
    """Name each head by its scores over all documents, as `regard.lens.heads` does for one text."""
    found = {
        role: _evidence(sums, f"relation.{name}", score)
        for role, (name, score) in SCORE_OF.items()
        if f"relation.{name}" in sums
    }
    scores = _pattern_scores(sums)
    return Heads(
        [
            head_of(
                *place,
                None,
                scores(number),
                {role: one for role, own in found.items() if (one := own[number]) is not None},
            )
            for number, place in enumerate(places)
        ]
    )


def estimate(sums: DocumentSums, name: str, score: Score) -> Estimate:
    """Score each head against the strongest control."""
    totals = sums[name]
    queries = totals[:, 0]
    count = queries.clamp_min(1)
    means = totals[:, 1:] / count[:, None]
    share = means[:, 0]
    controls = means[:, 1:] if means.shape[1] > 1 else torch.zeros_like(means)  # a mean has none
    strongest = controls.argmax(-1, keepdim=True)
    control = controls.gather(1, strongest)[:, 0]
    value, by_share, by_control = score(share, control)
    weights = torch.zeros_like(totals)
    weights[:, 0] = -(by_share * share + by_control * control)
    weights[:, 1] = by_share
    if means.shape[1] > 1:
        weights.scatter_(1, 2 + strongest, by_control[:, None])
    return Estimate(value, weights / count[:, None], queries)


def _evidence(sums: DocumentSums, name: str, score: Score) -> list[Evidence | None]:
    value, weights, queries = estimate(sums, name, score)
    error = variance(sums.second(name), weights, sums.count(name)).sqrt()
    documents = torch.full_like(queries, sums.count(name))
    return evidence(value, error.nan_to_num(), queries, documents, is_lead=score is lead)


def _columns(found: list[Evidence | None]) -> tuple[Tensor, Tensor]:
    """Return scores and margins; NaN for what is not known."""
    scores = [None if one is None else one.score for one in found]
    margins = [None if one is None else one.margin for one in found]
    return _numbers(scores), _numbers(margins)


def _pattern_scores(sums: DocumentSums) -> Callable[[int], PatternScores]:
    """Return a function of a head that returns its mean shares."""
    names = [name for name, _ in SCORE_OF.values()] + ["entropy", "resting"]
    totals = {name: sums[f"relation.{name}"] for name in names if f"relation.{name}" in sums}

    def of(head: int) -> PatternScores:
        values: dict[str, Any] = {"induction_queries": 0, "duplicate_token_queries": 0}
        for name, total in totals.items():
            queries, share, *controls = total[head].tolist()
            values[name] = share / queries if queries else None
            if name in ("induction", "duplicate_token"):
                values[f"{name}_queries"] = int(queries)
                for control, one in zip(CONTROLS[1:], controls[1:], strict=True):
                    values[f"{name}_{control}"] = one / queries if queries else None
        return PatternScores(**values)

    return of


def rows_of(
    sums: DocumentSums, heads: Heads, probes: Mapping[str, Mapping[str, float]]
) -> list[dict[str, Any]]:
    """Return a row of numbers a head; None is what was not measured.

    Args:
        sums: over the documents.
        heads: their names.
        probes: further numbers: of a column, by head such as "5.1"; margins under "…_margin".
    """
    columns: dict[str, Tensor] = {}
    for column, (name, score) in ESTIMATED.items():
        if name in sums:
            found = _evidence(sums, name, score)
            columns[column], columns[f"{column}_margin"] = _columns(found)
    rows = sums["rows"]
    for kind, own in zip(KINDS, sums["rest"].T, strict=True):
        columns[f"rest_{kind}"] = own / rows[:, 0]
    columns |= _reach(sums)
    if "headvis" in sums:
        columns |= _headvis(sums)
    discovered = {(one.layer, one.head) for one in heads.discoveries()}
    return [
        _row(head, (head.layer, head.head) in discovered, columns, number, probes)
        for number, head in enumerate(heads)
    ]


def _numbers(values: list[float | None]) -> Tensor:
    known = [torch.nan if value is None else value for value in values]
    return torch.tensor(known, dtype=torch.float64, device="cpu")


def _row(
    head: HeadScores,
    is_discovery: bool,  # noqa: FBT001 - of the one caller above
    columns: Mapping[str, Tensor],
    number: int,
    probes: Mapping[str, Mapping[str, float]],
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "layer": head.layer,
        "head": head.head,
        "role": head.role.value,
        "words": head.words,
        "evidence": head.evidence,
        "discovery": is_discovery,
    }
    for column in COLUMNS:
        for name in (column.name, f"{column.name}_margin"):
            value = float(columns[name][number]) if name in columns else torch.nan
            value = probes.get(name, {}).get(f"{head.layer}.{head.head}", value)
            if value == value or name == column.name:  # noqa: PLR0124 - NaN
                row[name] = value if value == value else None  # noqa: PLR0124 - likewise
    return row


def _reach(sums: DocumentSums) -> dict[str, Float[Tensor, " N"]]:
    """Return how far the weight reaches, from the profile of distances."""
    profile = sums["profile"]
    total = profile.sum(-1, keepdim=True).clamp_min(1e-300)
    within = (profile / total).cumsum(-1)
    edge = torch.tensor([*DISTANCES[1:], 2 * DISTANCES[-1]], dtype=torch.float64, device="cpu")
    window = edge[(within < _MOST).sum(-1).clamp(max=len(edge) - 1)] - 1
    far = profile[:, torch.tensor(DISTANCES, device="cpu") >= _FAR].sum(-1) / total[:, 0]
    return {"window": window, "far": far}


def _headvis(sums: DocumentSums) -> dict[str, Float[Tensor, " N"]]:
    named = dict(zip(headvis.SUMS, sums["headvis"].T, strict=True))
    return headvis.means(named)
