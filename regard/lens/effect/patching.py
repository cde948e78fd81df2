"""`patch`: heads and positions of one run put into another, one by one.

Axes: N layers, H heads, T positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import nn

from regard._arguments import Indices, check_choice, check_indices, check_whole, chosen
from regard.intervene import Intervention
from regard.lens.effect.contexts import Run, observed
from regard.lens.effect.measure import Progress, grid, measured, no_grad, reports, selected
from regard.lens.effect.runs import ModelRuns, Unchanged
from regard.lens.effect.table import Effects, Place
from regard.lens.targets import Target, TextModel, in_tokens, read_in
from regard.record import record
from regard.record.layer import Layer
from regard.record.sites import AttentionKind

Activation = Literal["context", "value", "pattern"]
Direction = Literal["denoise", "noise"]
PatchedOver = Literal["heads", "positions", "both"]


def patch(
    model: nn.Module | TextModel,
    clean: Run,
    corrupt: Run,
    target: Target,
    *,
    over: PatchedOver = "heads",
    activation: Activation = "context",
    direction: Direction = "denoise",
    layers: Indices | None = None,
    heads: Indices | None = None,
    positions: Indices | None = None,
    tokens: Any = None,
    batch_size: int | None = None,
    progress: Progress = None,
) -> Effects:
    """Put each head's activation of one run into another run, and measure what becomes of a number.

    Activation patching (Vig et al. 2020, arXiv:2004.12265; Heimersheim and Nanda 2024,
    arXiv:2404.15255, section 2). Two texts that differ in what decides the answer, word for word in
    the same places otherwise, tell which heads carry the difference. A head's context carries all
    that it found; its pattern only where it looked; its value only what it finds.

    Args:
        model: the model, as for `effects`.
        clean: the text with the right answer, as ``run`` of `effects`.
        corrupt: the other text, of as many tokens.
        target: the number, as for `effects`, read of either run.
        over: ``"heads"``: each head, at all positions; ``"positions"``: all heads of a layer, at
            each position; ``"both"``: each head at each position.
        activation: what is patched: ``"context"``, what a head hands to the output projection;
            ``"value"``, at the positions of keys, where query heads that share a value get one of
            their own; or ``"pattern"``, the weights, in the rows of queries.
        direction: ``"denoise"`` puts the clean run's activations into the corrupt run: what
            restores the answer suffices. ``"noise"`` puts the corrupt run's into the clean run:
            what breaks the answer is needed. Neither follows from the other.
        layers: the layers of self-attention; None is all.
        heads: the heads of each layer; None is all.
        positions: the positions to patch; None is all.
        tokens: names of the tokens: strings or a tokenizer, as for `record`.
        batch_size: as for `effects`.
        progress: as for `effects`.

    Returns:
        The `Effects`: the number with it patched − the number of the run that is patched
        (`Effects.unchanged`). `Effects.other` is the number of the run that it is taken from.

    Warns:
        RuntimeWarning: for a model that draws random numbers.

    Raises:
        Error: for a run in which a layer attends several times.
        RecordError: for a model that cannot be recorded.
        TypeError: for arguments of the wrong type.
        ValueError: for invalid values, and for runs of different lengths.
        IndexError: for layers, heads or positions that do not exist.

    Example:
        >>> import regard, torch
        >>> layer = regard.nn.MultiHeadAttention(6, 2, mask=regard.causal())
        >>> clean, corrupt = torch.randn(2, 1, 5, 6)
        >>> def target(output):
        ...     return output[:, -1, 0]
        >>> patched = regard.lens.patch(layer, {"x": clean}, {"x": corrupt}, target)
        >>> patched.axes, patched.other == target(layer(clean)).item()
        (('layer', 'head'), True)
        >>> whole = patched.unchanged + patched.values.sum()  # of one layer, whose output is linear
        >>> torch.testing.assert_close(float(whole), patched.other, atol=1e-5, rtol=0)
    """
    check_choice("over", over, get_args(PatchedOver))
    check_choice("activation", activation, get_args(Activation))
    check_choice("direction", direction, get_args(Direction))
    if batch_size is not None:
        check_whole(batch_size, "batch_size")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, but is {batch_size}")
    only = check_indices("layers", layers), check_indices("heads", heads)
    places = check_indices("positions", positions)
    into, source = (corrupt, clean) if direction == "denoise" else (clean, corrupt)
    if not isinstance(model, nn.Module):
        model, into, target, tokens = in_tokens(read := model, into, target, tokens)
        source = read_in(read, source)
    name = "clean" if direction == "denoise" else "corrupt"
    runs = ModelRuns(model, into, target, tokens)
    with no_grad():
        number, kept = _activations(ModelRuns(model, source, target), activation)
        with runs.open():
            unchanged = runs.unchanged()
            table = selected(unchanged, *only)
            length = _length(table, kept, activation, name)
            rows = chosen(places, length, "positions")
            entries = _entries(table, over, rows)
            axis = "keys" if activation == "value" else "queries"

            def change(place: tuple[Layer, Any, Any], to: Intervention, batch: int | None) -> None:
                layer, some, where = place
                to.patch(
                    **{activation: kept[layer.kind, layer.index], axis: where},
                    layers=layer.index,
                    heads=some,
                    kind=layer.kind,
                    batch=batch,
                )

            # All rows, unless they are chosen: a pattern's need not be told apart from a head's.
            everywhere = None if places is None else list(rows)
            changes = [
                (layer.index, partial(change, (layer, some, everywhere if row is None else row)))
                for layer, some, row in entries
            ]
            with reports(len(changes), progress) as report:
                size = batch_size or unchanged.batch_size
                values = measured(runs, unchanged, changes, size, report)
    by = f"{activation} of the {name} run"
    return _table(runs, unchanged, table, values, over, rows, by=by, other=number)


def _activations(
    runs: ModelRuns, activation: Activation
) -> tuple[float, dict[tuple[AttentionKind, int], Any]]:
    """Run the model once; return the target, and each layer's activations by kind and index."""
    with runs.open(), ExitStack() as stack:
        if activation == "pattern":
            recording = stack.enter_context(record(runs.model))
        else:
            seen = stack.enter_context(observed(runs.model, values=activation == "value"))
        number = float(runs.again()[1])
    if activation == "pattern":
        return number, {(layer.kind, layer.index): layer.pattern for layer in recording.layers}
    return number, dict(seen.values if activation == "value" else seen.contexts)


def _length(
    table: Sequence[tuple[Layer, tuple[int, ...]]],
    kept: Mapping[tuple[AttentionKind, int], Any],
    activation: Activation,
    name: str,
) -> int:
    """Return the number of positions of both runs.

    Raises:
        ValueError: if they differ, and for a layer that the other run did not have.
    """
    lengths = set()
    for layer, _ in table:
        other = kept.get((layer.kind, layer.index))
        if other is None:
            raise ValueError(
                f"the {name} run has no layer {layer.index} of {layer.kind!r} attention, which the "
                "other has; give texts that the model reads by the same layers"
            )
        theirs = other.shape[-1] if activation == "pattern" else other.shape[2]
        lengths.add((layer.pattern.shape[-1], theirs))
    if len(lengths) > 1 or any(own != theirs for own, theirs in lengths):
        own, theirs = max(lengths, key=lambda pair: abs(pair[0] - pair[1]))
        clean, corrupt = (theirs, own) if name == "clean" else (own, theirs)
        raise ValueError(
            f"clean has {clean} positions and corrupt {corrupt}, but they are patched position by "
            "position; give texts of as many tokens, in which the same words stand in the same "
            "places"
        )
    return lengths.pop()[0]


def _entries(
    table: Sequence[tuple[Layer, tuple[int, ...]]], over: PatchedOver, rows: Sequence[int]
) -> list[tuple[Layer, Any, int | None]]:
    """Return the layer, the heads and the position of each patch; None is all positions."""
    if over == "heads":
        return [(layer, head, None) for layer, heads in table for head in heads]
    if over == "positions":
        return [(layer, list(heads), row) for layer, heads in table for row in rows]
    return [(layer, head, row) for layer, heads in table for head in heads for row in rows]


def _table(
    runs: ModelRuns,
    unchanged: Unchanged,
    table: Sequence[tuple[Layer, tuple[int, ...]]],
    values: torch.Tensor,
    over: PatchedOver,
    rows: Sequence[int],
    *,
    by: str,
    other: float,
) -> Effects:
    tokens = unchanged.tokens
    indices = tuple(layer.index for layer, _ in table)
    names = tuple(str(row) if tokens is None else f"{row} {tokens[row]}" for row in rows)
    places: tuple[Place, ...]
    if over == "positions":
        axes: tuple[str, ...] = ("layer", "position")
        labels: tuple[Any, ...] = (indices, names)
        values = values.reshape(len(table), len(rows))
        places = tuple((layer, row) for layer in indices for row in rows)
    else:
        count = 1 if over == "heads" else len(rows)
        heads, filled = grid(table, values.reshape(-1, count).mT)  # (count, N, H)
        values = filled[0] if over == "heads" else filled.permute(1, 2, 0).contiguous()
        axes, labels = ("layer", "head"), (indices, heads)
        places = tuple((layer, head) for layer in indices for head in heads)
        if over == "both":
            axes, labels = (*axes, "position"), (*labels, names)
            places = tuple((*place, row) for place in places for row in rows)
    return Effects(
        values=values,
        unchanged=unchanged.number,
        target=runs.target,
        over=over,
        method="patching",
        axes=axes,
        labels=labels,
        places=places,
        by=by,
        other=other,
    )
