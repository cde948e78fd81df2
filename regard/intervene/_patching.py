"""Patching: puts the weights or the values of another run into a call.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension, Dv of value,
T positions of another run; b and h are B or 1, H or 1, l is L or 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from regard._contexts import wants_gradient
from regard._shapes import Bool, Float, Int
from regard._tensors import pad_last
from regard.errors import Error
from regard.inputs import Problem
from regard.intervene._position import CallPosition
from regard.intervene._weights import heads_of
from regard.intervene.operations import Operation, PatchContext, PatchPattern, PatchValue
from regard.masks.bounds import IndexBounds
from regard.masks.rows import Rows
from regard.masks.spans import Spans


def with_patterns(
    problem: Problem, changes: Sequence[PatchPattern], position: CallPosition
) -> Problem:
    """Replace the weights of some heads, in all rows or some, by those of another run.

    Raises:
        Error: for a pattern of another size.
    """
    rows = [_rows_named(change, problem, position) for change in changes]
    for change, here in _of_one(changes, [change.pattern for change in changes], rows):
        problem = _with_pattern(problem, change, here, position)
    return problem


def _with_pattern(
    problem: Problem,
    change: PatchPattern,
    here: Bool[Tensor, "#b #h #l"],
    position: CallPosition,
) -> Problem:
    other = _lined_up(change, problem, position, here)
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
    new, old = other.query * ratio, problem.query
    new_key, old_key = other.repeated(other.key), problem.repeated(problem.key)
    patched = here[..., None]
    if here.shape[-1] == 1:  # whole heads
        width = max(new.shape[-1], old.shape[-1])
        query, key = (
            torch.where(patched, pad_last(one, width), pad_last(another, width))
            for one, another in ((new, old), (new_key, old_key))
        )
    else:
        # The rows of a head share its keys: those of both runs stand side by side, and each query
        # is 0 beside the ones that it does not use.
        new, new_key = (tensor.expand(*problem.heads, -1, -1) for tensor in (new, new_key))
        query = torch.cat([old.masked_fill(patched, 0), new.masked_fill(~patched, 0)], dim=-1)
        key = torch.cat([old_key, new_key], dim=-1)
    return replace(
        problem,
        query=query,
        key=key,
        value=problem.repeated(problem.value),
        rows=_rows(other.rows, problem.rows, here),
        alibi=_numbers("slopes of ALiBi", other.alibi, problem.alibi, 0.0, here, change),
        sink=_numbers("sink logits", other.sink, problem.sink, -torch.inf, here, change),
    )


def with_values(problem: Problem, changes: Sequence[PatchValue], position: CallPosition) -> Problem:
    """Replace the values of some heads, at all keys or some.

    Raises:
        Error: for values of another size.
    """
    keys = [
        heads_of(change, problem)[..., None] & position.columns(change.keys, problem.keys)
        for change in changes
    ]
    for change, here in _of_one(changes, [change.value for change in changes], keys):
        problem = _with_value(problem, change, here, position)
    return problem


def _with_value(
    problem: Problem, change: PatchValue, here: Bool[Tensor, "#b #h S"], position: CallPosition
) -> Problem:
    assert problem.value is not None, "a call has values"
    batch, heads = problem.heads
    groups = problem.key.shape[1]
    other, value = change.value, problem.value
    _require_heads(change, other, batch, (groups, heads), value.shape[-1])
    by_group = here.expand(-1, heads, -1).unflatten(1, (groups, heads // groups))
    shares = value.shape[1] == groups and other.shape[1] in (1, groups)
    if shares and bool((by_group == by_group[:, :, :1]).all()):
        here = by_group[:, :, 0]  # every query head of a group, or none of them
    else:
        other = other.expand(batch, -1, -1, -1)
        value, other = problem.repeated(value), problem.repeated(other)
    places = here.flatten(0, 1).any(dim=0).nonzero().flatten()
    rows = torch.zeros(problem.keys, dtype=torch.int64, device=value.device)
    rows[places] = _rows_of(other, places + position.first_key, "keys", change, position)
    new = other.to(value)[..., rows, :]
    return replace(problem, value=torch.where(here[..., None], new, value))


def with_contexts(
    changes: Sequence[PatchContext], problem: Problem, position: CallPosition
) -> Callable[[Tensor], Tensor]:
    """Return a function that replaces rows of a context ``(B, H, L, Dv)``.

    It raises an `Error` for contexts of another size.
    """
    rows = [_rows_named(change, problem, position) for change in changes]
    patches = _of_one(changes, [change.context for change in changes], rows)

    def edit(context: Float[Tensor, "B H L Dv"]) -> Float[Tensor, "B H L Dv"]:
        context = context.clone()
        batch, heads, queries, width = context.shape
        for change, here in patches:
            other = change.context
            _require_heads(change, other, batch, (heads,), width)
            places = here.expand(batch, heads, queries).nonzero(as_tuple=True)
            named = position.queries.expand(batch, heads, queries)[places]
            taken = _rows_of(other, named, "queries", change, position)
            sequence, head = (
                place if size > 1 else torch.zeros_like(place)
                for place, size in zip(places[:2], other.shape[:2], strict=True)
            )
            context[places] = other.to(context)[sequence, head, taken]
        return context

    return edit


def _rows_named(
    change: PatchPattern | PatchContext, problem: Problem, position: CallPosition
) -> Bool[Tensor, "#b #h #l"]:
    """Return a mask of the rows that a patch replaces; of size 1 if it is all of them."""
    here = heads_of(change, problem)[..., None]
    return here if change.queries is None else here & position.rows(change.queries)


P = TypeVar("P", bound=Operation)


def _of_one(
    changes: Sequence[P], sources: Sequence[object], places: Sequence[Tensor]
) -> list[tuple[P, Tensor]]:
    """Join patches from one source: a batch may hold one of them per head and position.

    Args:
        changes: the patches.
        sources: the pattern or tensor that each is from.
        places: masks of what each replaces.

    Returns:
        The first patch from each source, and the mask of all that are from it.
    """
    joined: dict[int, tuple[P, Tensor]] = {}
    for change, source, here in zip(changes, sources, places, strict=True):
        first, before = joined.get(id(source), (change, here))
        joined[id(source)] = first, before | here
    return list(joined.values())


def _require_heads(
    change: PatchValue | PatchContext, other: Tensor, batch: int, heads: Sequence[int], width: int
) -> None:
    """Refuse a tensor of other sequences, heads or dimension than the layer's.

    Raises:
        Error: for such a tensor.
    """
    if other.shape[-1] != width:
        raise Error(
            f"{change!r}: the tensor's last axis is {other.shape[-1]}, but the layer's values have "
            f"{width} dimensions"
        )
    if other.shape[0] not in (1, batch) or other.shape[1] not in (1, *heads):
        layer = " or ".join(map(str, sorted({*heads})))
        raise Error(
            f"{change!r}: the tensor is of {other.shape[0]} sequences of {other.shape[1]} heads, "
            f"the layer of {batch} of {layer}; give as many, or one"
        )


def _rows_of(
    other: Float[Tensor, "#B #H T Dv"],
    positions: Int[Tensor, "n"],
    name: str,
    change: PatchValue | PatchContext,
    position: CallPosition,
) -> Int[Tensor, "n"]:
    """Return where a tensor holds the given positions of the text; one position stands for all.

    Raises:
        Error: for positions that it does not hold.
    """
    if other.shape[2] == 1:
        return torch.zeros_like(positions)
    position.require_start(repr(change))
    last = int(positions.max()) if positions.numel() else -1
    if last >= other.shape[2]:
        raise Error(
            f"{change!r}: the tensor holds {other.shape[2]} positions, but the call has {name} up "
            f"to {last} of the text; name those that it holds by {name}=slice(0, "
            f"{other.shape[2]}), or give one position, which stands for all"
        )
    return positions


def _lined_up(
    change: PatchPattern, problem: Problem, position: CallPosition, here: Bool[Tensor, "#b #h #l"]
) -> Problem:
    """Crop the pattern's problem to the queries and keys of the call.

    Args:
        change: the patch.
        problem: the call.
        position: its position in the text.
        here: True for rows that are patched.
    """
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
    _require_weight_within(kept, first, stop, change, here)
    other = other.crop(slice(first, stop), kept)
    return _widened(other, problem.keys)


def _require_weight_within(
    kept: slice, first: int, stop: int, change: PatchPattern, here: Bool[Tensor, "#b #h #l"]
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
    lost = torch.where(here, masses, 0).max().item()
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


def _rows(new: Rows, old: Rows, here: Bool[Tensor, "#b #h #l"]) -> Rows:
    """Select the rows of either problem."""

    def pick(one: Tensor, other: Tensor) -> Tensor:
        return torch.where(here if one.ndim == 3 else here[..., None], one, other)

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


def _spans(new: Spans | None, old: Spans | None, here: Bool[Tensor, "#b #h #l"]) -> Spans | None:
    """Join the spans of both problems, each restricted to its rows."""
    parts = [
        Spans(spans.start * where, spans.stop * where, spans.added)
        for spans, where in ((new, here), (old, ~here))
        if spans is not None
    ]
    if len(parts) < 2:
        return parts[0] if parts else None
    return parts[0].joined(parts[1])


def _numbers(
    name: str,
    new: Tensor | None,
    old: Tensor | None,
    neutral: float,
    here: Bool[Tensor, "#b #h #l"],
    change: PatchPattern,
) -> Tensor | None:
    """Select the number of each head from either problem.

    Raises:
        Error: if some rows of a head are patched, and the numbers of both runs differ, or gradients
            are wanted, which cannot be of the other rows alone.
    """
    if new is None and old is None:
        return None
    like = old if new is None else new
    assert like is not None, "one of them is there"
    blank = like.new_full((1, 1), neutral)
    one, other = blank if new is None else new, blank if old is None else old
    everywhere = here.all(dim=-1)
    partly = here.any(dim=-1) & ~everywhere
    if bool((partly & (one != other)).any()):
        raise Error(
            f"{change!r}: the pattern's {name} are not the layer's, and a head has one for all its "
            "queries; leave queries out to patch whole heads"
        )
    if torch.is_grad_enabled() and wants_gradient(other) and bool(partly.any()):
        raise Error(
            f"{change!r}: the gradient of the layer's {name} would be of the patched queries too; "
            "run the model under torch.no_grad(), or leave queries out to patch whole heads"
        )
    return torch.where(everywhere, one, other)
