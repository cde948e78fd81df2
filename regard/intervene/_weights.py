"""Knock-out, steering and temperature: change the weights of a call.

Axes: B batch, H query heads, G key/value heads, L queries, S keys; b and h are B or 1, H or 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard._arguments import chosen
from regard._shapes import Bool, Float
from regard.errors import Error
from regard.inputs import Problem
from regard.intervene._position import CallPosition
from regard.intervene.operations import KnockOut, Operation, Steer, Temper
from regard.masks.spans import Spans


def heads_of(change: Operation, problem: Problem) -> Bool[Tensor, "#b #h"]:
    """Return a mask of the heads an operation applies to; a dimension of size 1 is broadcast.

    Raises:
        Error: for a head or a batch index that the call does not have.
    """
    batch, heads = problem.heads
    parts = []
    for numbers, size, name in ((change.batch, batch, "batch"), (change.heads, heads, "heads")):
        try:
            listed = set(chosen(numbers, size, name))
        except IndexError as error:
            raise Error(f"{change!r}: {error}") from error
        if not listed and numbers is not None:
            raise Error(f"{change!r}: {name} names none of those that there are, 0 to {size - 1}")
        part = torch.zeros(size, dtype=torch.bool, device=problem.query.device)
        part[list(listed)] = True
        parts.append(part[:1] if len(listed) == size > 0 else part)
    return parts[0][:, None] & parts[1]


def with_spans(problem: Problem, changes: Sequence[Operation], position: CallPosition) -> Problem:
    """Apply knock-outs and steering: hide keys, and add to the scores of others."""
    spans: list[_RowInterval] = []
    for change in changes:
        if not isinstance(change, (KnockOut, Steer)):
            continue
        added = change.by if isinstance(change, Steer) else -math.inf
        rows = heads_of(change, problem)[..., None] & position.rows(change.queries)
        for start, stop in position.spans(change.keys, problem.keys):
            _merge(spans, _RowInterval(start * rows, stop * rows, added))
    if not spans:
        return problem
    starts = torch.broadcast_tensors(*(span.start for span in spans))
    stops = torch.broadcast_tensors(*(span.stop for span in spans))
    numbers = torch.tensor([span.added for span in spans], dtype=torch.float64, device="cpu")
    new = Spans(torch.stack(starts), torch.stack(stops), numbers)
    return replace(problem, rows=problem.rows.with_spans(new))


@dataclass(frozen=True, eq=False)
class _RowInterval:
    start: Tensor  # (b, h, L), as stop; equal where a row has none
    stop: Tensor
    added: float

    @property
    def present(self) -> Tensor:
        return self.start < self.stop


def _merge(spans: list[_RowInterval], new: _RowInterval) -> None:
    """Append an interval per row, or merge it into one of equal number on disjoint rows."""
    for number, old in enumerate(spans):
        if old.added == new.added and not bool((old.present & new.present).any()):
            start = torch.where(new.present, new.start, old.start)
            stop = torch.where(new.present, new.stop, old.stop)
            spans[number] = _RowInterval(start, stop, old.added)
            return
    spans.append(new)


def with_temperature(problem: Problem, changes: Sequence[Operation]) -> Problem:
    """Multiply the scores, including biases, by a factor per head.

    Raises:
        Error: for only some heads of a layer with a softcap, which all heads share.
    """
    factor = torch.ones(1, 1, dtype=torch.float64, device=problem.query.device)
    for change in changes:
        if isinstance(change, Temper):
            factor = torch.where(heads_of(change, problem), factor * change.by, factor)
    distinct = [float(one) for one in factor.unique()]  # of which torch.func of 2.9 makes no list
    if distinct == [1.0]:
        return problem
    rows = problem.rows
    if len(distinct) == 1:
        (by,) = distinct
        spans = rows.spans
        return replace(
            problem,
            scale=problem.scale * by,
            softcap=None if problem.softcap is None else problem.softcap * by,
            alibi=None if problem.alibi is None else problem.alibi * by,
            rows=replace(
                rows,
                bias=None if rows.bias is None else rows.bias * by,
                spans=None if spans is None else replace(spans, added=spans.added * by),
            ),
        )
    if problem.softcap is not None:
        raise Error(
            "temper: the layer has a softcap, under which all its heads share one temperature; "
            "leave heads and batch out"
        )
    exact = problem.cast(torch.promote_types(problem.query.dtype, torch.float32))
    factor = factor.to(exact.query.dtype)
    return replace(
        exact,
        query=exact.query * factor[..., None, None],
        alibi=None if exact.alibi is None else exact.alibi * factor,
        rows=replace(
            rows,
            bias=None if rows.bias is None else rows.bias * factor[..., None, None],
            spans=None if rows.spans is None else _tempered(rows.spans, factor),
        ),
    )


def _tempered(spans: Spans, factor: Float[Tensor, "#b #h"]) -> Spans:
    """Multiply the numbers that spans add by a factor per head, one span per product."""
    parts = []
    for start, stop, added in zip(spans.start, spans.stop, spans.added.tolist(), strict=True):
        for by in [1.0] if math.isinf(added) else factor.unique().tolist():
            here = torch.ones_like(factor, dtype=torch.bool) if math.isinf(added) else factor == by
            parts.append((start * here[..., None], stop * here[..., None], added * by))
    starts, stops, products = zip(*parts, strict=True)
    return Spans(
        torch.stack(torch.broadcast_tensors(*starts)),
        torch.stack(torch.broadcast_tensors(*stops)),
        torch.tensor(products, dtype=torch.float64, device="cpu"),
    )
