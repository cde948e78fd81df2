"""Patching: combines two problems into one whose heads come from either.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension; b and h are
B or 1, H or 1.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from regard._shapes import Bool
from regard._tensors import pad_last
from regard.errors import Error
from regard.inputs import Problem
from regard.intervene._position import CallPosition
from regard.intervene._weights import heads_of
from regard.intervene.operations import Patch
from regard.masks.bounds import IndexBounds
from regard.masks.rows import Rows
from regard.masks.spans import Spans


def with_pattern(problem: Problem, change: Patch, position: CallPosition) -> Problem:
    """Replace the weights of some heads by those of another run.

    Raises:
        Error: for a pattern of another size.
    """
    here = heads_of(change, problem)
    other = _lined_up(change, problem, position)
    if other.softcap != problem.softcap:
        raise Error(
            f"{change!r}: the pattern's softcap is {other.softcap}, the layer's {problem.softcap}"
        )
    dtype = torch.promote_types(problem.query.dtype, other.query.dtype)
    ratio = other.scale / problem.scale if problem.scale else 1.0
    if ratio != 1:  # the ratio is folded into the query without rounding
        dtype = torch.promote_types(dtype, torch.float32)
    problem, other = problem.cast(dtype), other.cast(dtype)
    assert problem.value is not None, "a call has values"
    width = max(problem.query.shape[-1], other.query.shape[-1])

    def pick(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(here[..., None, None], pad_last(new, width), pad_last(old, width))

    return replace(
        problem,
        query=pick(other.query * ratio, problem.query),
        key=pick(other.repeated(other.key), problem.repeated(problem.key)),
        value=problem.repeated(problem.value),
        rows=_rows(other.rows, problem.rows, here),
        alibi=_numbers(other.alibi, problem.alibi, here, 0.0),
        sink=_numbers(other.sink, problem.sink, here, -torch.inf),
    )


def _lined_up(change: Patch, problem: Problem, position: CallPosition) -> Problem:
    """Crop the pattern's problem to the queries and keys of the call."""
    other = change.pattern.problem
    first = int(position.queries.amin()) if position.queries.numel() else 0
    stop, count = first + problem.queries, max(position.key_counts)
    shape = tuple(change.pattern.shape)
    fits = all(ours in (1, theirs) for ours, theirs in zip(other.heads, problem.heads, strict=True))
    if not fits:
        raise Error(
            f"{change!r}: a pattern of shape {shape} has {other.heads[0]} sequences of "
            f"{other.heads[1]} heads, the layer {problem.heads[0]} of {problem.heads[1]}; give as "
            "many, or one"
        )
    if (other.queries, other.keys) == (problem.queries, problem.keys):
        return other
    position.require_start(repr(change))
    if other.queries < stop or other.keys < count or min(position.key_counts) < count:
        raise Error(
            f"{change!r}: a pattern of shape {shape} does not hold the call's queries, {first} to "
            f"{stop - 1} of the text, and its {count} keys"
        )
    kept = slice(position.first_key, min(count, position.first_key + problem.keys))
    _require_weight_within(kept, first, stop, change, heads_of(change, problem))
    other = other.crop(slice(first, stop), kept)
    return _widened(other, problem.keys)


def _require_weight_within(
    kept: slice, first: int, stop: int, change: Patch, here: Bool[Tensor, "#b #h"]
) -> None:
    """Refuse patched rows with weight on keys that the call does not have, such as evicted ones.

    Without these keys the softmax would distribute their weight over the others.
    """
    rows = change.pattern.crop(queries=(first, stop))
    seen = rows.visible_keys()
    if seen.start >= kept.start and seen.stop <= kept.stop:
        return
    outside = torch.ones(change.pattern.shape[-1], dtype=torch.bool, device="cpu")
    outside[kept] = False
    masses = rows.mass(outside).reshape(*change.pattern.problem.heads, -1)
    lost = torch.where(here[..., None], masses, 0).max().item()
    if lost != 0:
        raise Error(
            f"{change!r}: the queries {first} to {stop - 1} of a pattern of shape "
            f"{tuple(change.pattern.shape)} have up to {lost:.3g} of their weight on keys other "
            f"than {kept.start} to {kept.stop - 1}, which are all that the call has, as a rolling "
            "cache drops earlier ones; give the model the whole text at once (use_cache=False), "
            "or a pattern whose queries see no other keys"
        )


def _widened(other: Problem, keys: int) -> Problem:
    """Pad with keys that no query sees, as in a cache of fixed size that is not yet full."""
    missing = keys - other.keys
    if missing == 0:
        return other
    rows = replace(other.rows, keys=keys)
    if rows.allowed is not None or rows.bias is not None:
        rows = replace(
            rows,
            allowed=_wider(rows.allowed, missing),
            bias=_wider(rows.bias, missing),
        )
    key = torch.nn.functional.pad(other.key, (0, 0, 0, missing))
    start, stop = other.rows.start, other.rows.stop
    rows = replace(rows, bounds=IndexBounds(other.rows.positions, start, stop))
    return replace(other, key=key, rows=rows)


def _wider(matrix: Tensor | None, missing: int) -> Tensor | None:
    if matrix is None or matrix.shape[-1] == 1:
        return matrix
    return torch.nn.functional.pad(matrix, (0, missing))


def _rows(new: Rows, old: Rows, here: Bool[Tensor, "#b #h"]) -> Rows:
    """Select the rows of either problem per head."""

    def pick(one: Tensor, other: Tensor) -> Tensor:
        return torch.where(here.reshape(*here.shape, *(1,) * (one.ndim - 2)), one, other)

    def dense(name: str, neutral: Tensor) -> Tensor | None:
        one, other = getattr(new, name), getattr(old, name)
        if one is None and other is None:
            return None
        return pick(neutral if one is None else one, neutral if other is None else other)

    return replace(
        old,
        bounds=IndexBounds(
            *(
                pick(getattr(new, name), getattr(old, name))
                for name in ("positions", "start", "stop")
            )
        ),
        allowed=dense("allowed", here.new_ones((1, 1, 1, 1))),
        bias=dense("bias", torch.zeros(1, 1, 1, 1, device=here.device)),
        spans=_spans(new.spans, old.spans, here),
    )


def _spans(new: Spans | None, old: Spans | None, here: Bool[Tensor, "#b #h"]) -> Spans | None:
    """Join the spans of both problems, each restricted to its heads."""
    parts = [
        Spans(spans.start * where[..., None], spans.stop * where[..., None], spans.added)
        for spans, where in ((new, here), (old, ~here))
        if spans is not None
    ]
    if len(parts) < 2:
        return parts[0] if parts else None
    return parts[0].joined(parts[1])


def _numbers(
    new: Tensor | None, old: Tensor | None, here: Bool[Tensor, "#b #h"], neutral: float
) -> Tensor | None:
    if new is None and old is None:
        return None
    like = old if new is None else new
    assert like is not None, "one of them is there"
    blank = like.new_full((1, 1), neutral)
    return torch.where(here, blank if new is None else new, blank if old is None else old)
