"""Weights of another run in place of a call's own: two problems, head by head, as one.

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
from regard.intervene._place import Place
from regard.intervene._weights import heads_of
from regard.intervene.changes import Patch
from regard.masks.bounds import IndexBounds
from regard.masks.rows import Rows
from regard.masks.spans import Spans


def with_pattern(problem: Problem, change: Patch, place: Place) -> Problem:
    """Put the weights of another run into the heads of a change.

    Raises:
        Error: for a pattern of another size.
    """
    here = heads_of(change, problem)
    other = _lined_up(change, problem, place)
    if other.softcap != problem.softcap:
        raise Error(
            f"{change!r}: the pattern's softcap is {other.softcap}, the layer's {problem.softcap}"
        )
    dtype = torch.promote_types(problem.query.dtype, other.query.dtype)
    ratio = other.scale / problem.scale if problem.scale else 1.0
    if ratio != 1:  # the query takes it, which must not round
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


def _lined_up(change: Patch, problem: Problem, place: Place) -> Problem:
    """The pattern's problem, of the call's queries and keys alone."""
    other = change.pattern.problem
    first = int(place.queries.amin()) if place.queries.numel() else 0
    stop, count = first + problem.queries, max(place.key_counts)
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
    place.require_start(repr(change))
    if other.queries < stop or other.keys < count or min(place.key_counts) < count:
        raise Error(
            f"{change!r}: a pattern of shape {shape} does not hold the call's queries, {first} to "
            f"{stop - 1} of the text, and its {count} keys"
        )
    kept = slice(place.first_key, min(count, place.first_key + problem.keys))
    _require_weight_within(kept, first, stop, change, heads_of(change, problem))
    other = other.crop(slice(first, stop), kept)
    return _widened(other, problem.keys)


def _require_weight_within(
    kept: slice, first: int, stop: int, change: Patch, here: Bool[Tensor, "#b #h"]
) -> None:
    """Refuse rows with weight on keys whose values a call does not have, such as dropped ones.

    Only the rows of heads that are patched count.

    Without these keys the softmax would share their weight out among the others.
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
    """Add keys that no query sees: the room of a cache that is not filled."""
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
    """The rows of either problem, head by head."""

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
    """The spans of both, each in its own heads."""
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
