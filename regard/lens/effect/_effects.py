"""`effects`: which heads, or which tokens, a number that a model computes rests on.

Axes: N layers, H heads, T tokens, K keys or blocks of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard._arguments import Indices, check_indices, chosen
from regard._shapes import Float, Int
from regard.intercept import change_calls
from regard.intervene import Intervention
from regard.intervene.operations import Ablate
from regard.lens.effect._arguments import (
    block_name,
    blocks_of,
    check_arguments,
    checked_spans,
)
from regard.lens.effect._attribution import Contexts
from regard.lens.effect._runs import ModelRuns, Unchanged, chunks
from regard.lens.effect._table import Effects, Method, Over, Place
from regard.lens.effect._targets import Target
from regard.lens.effect.hybrid import warn_of_hybrid
from regard.record import Recording
from regard.record.layer import Layer
from regard.record.readings import bar

Progress = bool | Callable[[int, int], None] | None


def effects(
    model: nn.Module,
    run: Int[Tensor, "*b T"] | Mapping[str, Any] | Callable[[nn.Module], Any],
    target: Target,
    *,
    over: Over = "heads",
    method: Method = "ablation",
    by: str | Recording = "zero",
    layers: Indices | None = None,
    heads: Indices | None = None,
    spans: Sequence[Place] | None = None,
    tokens: Any = None,
    batch_size: int | None = None,
    progress: Progress = None,
) -> Effects:
    """Measure what a number that a model computes rests on: on which heads, or on which tokens.

    Each head in turn is ablated, or each token hidden, and the number read again; copies of the
    text make a batch in which each copy has its own change. A weight says where a head looks, an
    effect what the number would be without it; they often differ. Effects are of one change at a
    time: of two heads that do the same, neither may have any.

    The model runs in the mode that it is in: call ``model.eval()`` first if it has dropout, whose
    noise would be part of the effects.

    Args:
        model: whose attention is changed; as for `intervene`.
        run: what it is run on: token ids of one text, a mapping of the model's inputs by name, as a
            tokenizer of `transformers` gives, or a function that runs the model it is given and
            returns the output, once for each change.
        target: the number: a `LogProbability` or `Logit` of a token; ``"loss"``, the mean negative
            log-likelihood of each next token; or a function of the model's output that gives a
            number for each sequence, ``(B,)``. For a negative position, a `GPT` or a model of
            `transformers` computes no logits before it (``logits_to_keep``), unless `run` is a
            function or has labels, or hooks or code of yours may read them.
        over: ``"heads"``, or ``"keys"``: hide each token from all later queries. A token's own row
            keeps it, so that the last one has effect 0; what is not causal still sees it before.
            In a hybrid model, which also has recurrent or convolutional layers, tokens are hidden
            from attention alone, and a `RuntimeWarning` says so.
        method: ``"ablation"``; or, over heads, ``"gradient"``, attribution patching: one forward
            and one backward, which give an approximation, exact where the number is linear in the
            head's context. `Effects.check` compares it with ablation. NaN in a layer that the
            number depends on, but to which no gradient comes back.
        by: what ablation puts in the place of a context: ``"zero"``, ``"mean"`` or a recording; see
            `Intervention.ablate`.
        layers: the layers of self-attention to measure, or, over keys, to hide keys in; all by
            default.
        heads: likewise, of each layer.
        spans: over keys, the blocks to hide, each its first key and one past its last; by default
            each token, or of more than 64 tokens, at most 64 blocks of equal size.
        tokens: names of the tokens: strings or a tokenizer, as for `record`.
        batch_size: most copies of the text in a batch; by default what fills the machine. Where a
            call's batch is something else, such as windows, each change gets a run of its own. In a
            model that lets one text of a batch depend on the others, give 1.
        progress: show a bar on the terminal (needs rich); None shows it where there is one. Or a
            function, which is called with how many changes are done and how many there are; what
            it raises ends the work.

    Returns:
        The `Effects`: the number under each change − the number as it is.

    Warns:
        RuntimeWarning: for a hybrid model, for one that draws from torch's default generators while
            it runs, and of layers to which no gradient comes back.

    Raises:
        Error: for a change that can't be made.
        RecordError: for a model that can't be recorded either.
        TypeError: for arguments of another kind.
        ValueError: for numbers that mean nothing, and a method that does not go with ``over``.
        IndexError: for layers or heads that the model does not have.

    Example:
        >>> import regard, torch
        >>> from regard.nn import MultiHeadAttention
        >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
        >>> x = torch.randn(1, 5, 6)
        >>> regard.lens.effects(layer, lambda layer: layer(x), lambda y: y[:, -1].norm(dim=-1)).axes
        ('layer', 'head')
    """
    check_arguments(over, method, by, spans, batch_size)
    selected = check_indices("layers", layers), check_indices("heads", heads)
    if over == "keys":
        warn_of_hybrid(model)
    runs = ModelRuns(model, run, target, tokens)
    if method == "gradient":
        return _by_gradient(runs, by, selected, batch_size, progress)
    with _no_grad(), runs.open():
        unchanged = runs.unchanged()
        size = batch_size or unchanged.batch_size
        table = _selected(unchanged, *selected)
        if over == "keys":
            return _over_keys(runs, unchanged, table, selected[1], spans, size, progress)
        places = [(layer.index, head) for layer, numbers in table for head in numbers]
        with reports(len(places), progress) as report:
            values = _ablated(runs, unchanged, places, by, size, report)
        return _over_heads(runs, unchanged, table, values, "ablation")


def _ablated(
    runs: ModelRuns,
    unchanged: Unchanged,
    places: Sequence[Place],
    by: str | Recording,
    size: int,
    report: Callable[[int], None],
) -> Float[Tensor, " K"]:
    """The effects of ablating each of some heads."""
    values = torch.zeros(len(places), dtype=torch.float64, device="cpu")
    for layer in unchanged.layers:
        here = [number for number, place in enumerate(places) if place[0] == layer.index]
        for chunk in chunks(len(here), size if runs.batches else 1):
            entries = [here[number] for number in chunk]
            changes = [
                partial(
                    Intervention.ablate,
                    layers=layer.index,
                    heads=places[number][1],
                    kind=layer.kind,
                    by=by,
                )
                for number in entries
            ]
            values[entries] = runs.changed(layer, changes) - unchanged.number
            report(len(entries))
    return values


def _over_keys(
    runs: ModelRuns,
    unchanged: Unchanged,
    table: Sequence[tuple[Layer, tuple[int, ...]]],
    heads: tuple[int, ...] | slice | None,
    spans: Sequence[Place] | None,
    size: int,
    progress: Progress,
) -> Effects:
    length = _length([layer for layer, _ in table])
    blocks = blocks_of(length) if spans is None else checked_spans(spans, length)
    values = torch.zeros(len(blocks), dtype=torch.float64, device="cpu")
    hidden = [number for number, (_, stop) in enumerate(blocks) if stop < length]
    indices, first = [layer.index for layer, _ in table], table[0][0]
    with reports(len(blocks), progress) as report:
        report(len(blocks) - len(hidden))  # no later query is there to hide them from
        for chunk in chunks(len(hidden), size if runs.batches else 1):
            entries = [hidden[number] for number in chunk]
            changes = [
                partial(
                    Intervention.knock_out,
                    keys=slice(*blocks[number]),
                    queries=slice(blocks[number][1], None),
                    layers=indices,
                    heads=heads,
                    kind=first.kind,
                )
                for number in entries
            ]
            values[entries] = runs.changed(first, changes) - unchanged.number
            report(len(entries))
    return Effects(
        values=values,
        unchanged=unchanged.number,
        target=runs.target,
        over="keys",
        method="ablation",
        axes=("keys",),
        labels=(tuple(block_name(block, unchanged.tokens) for block in blocks),),
        places=tuple(blocks),
    )


def _length(layers: Sequence[Layer]) -> int:
    """How many keys some layers have.

    Raises:
        ValueError: if they differ from layer to layer.
    """
    sizes = sorted({layer.pattern.shape[-1] for layer in layers})
    if len(sizes) != 1:
        raise ValueError(
            f"over='keys' needs layers over the same keys, but they have {sizes}; name those "
            "of the text in layers, or take over='heads'"
        )
    return sizes[0]


def _by_gradient(
    runs: ModelRuns,
    by: str | Recording,
    selected: tuple[Any, Any],
    batch_size: int | None,
    progress: Progress,
) -> Effects:
    contexts = Contexts(runs.model)
    with torch.enable_grad(), runs.open(), change_calls(contexts):
        unchanged = runs.unchanged(keep=False)
        table = _selected(unchanged, *selected)
        ablation = Ablate(by=by, kind=table[0][0].kind)
        by_layer = contexts.effects(unchanged.target, ablation)
    with _no_grad(), runs.open():
        cut = contexts.cut_layers(lambda: runs.again()[1], ablation)
    cut = [layer.index for layer, _ in table if layer.index in cut]
    if cut:
        for layer in cut:
            by_layer[layer].fill_(torch.nan)
        warnings.warn(
            f"method='gradient': no gradient came back to layer(s) {', '.join(map(str, cut))}, on "
            "which the number depends, so that their effects are NaN: a reentrant checkpoint, "
            "torch.no_grad(), detach() or a function whose backward returns None cuts the graph; "
            "run the model without it, or take method='ablation'",
            RuntimeWarning,
            stacklevel=3,
        )
    values = torch.cat([by_layer[layer.index][list(numbers)] for layer, numbers in table])

    def ablate(places: Sequence[Place]) -> Float[Tensor, " K"]:
        with _no_grad(), runs.open(), reports(len(places), progress) as report:
            start = runs.unchanged()
            return _ablated(runs, start, places, by, batch_size or start.batch_size, report)

    return _over_heads(runs, unchanged, table, values, "gradient", ablate)


def _over_heads(
    runs: ModelRuns,
    unchanged: Unchanged,
    table: Sequence[tuple[Layer, tuple[int, ...]]],
    values: Float[Tensor, " K"],
    method: Method,
    ablate: Callable[[Sequence[Place]], Tensor] | None = None,
) -> Effects:
    columns = tuple(sorted({head for _, numbers in table for head in numbers}))
    grid = torch.full((len(table), len(columns)), torch.nan, dtype=torch.float64, device="cpu")
    rows = [row for row, (_, numbers) in enumerate(table) for _ in numbers]
    grid[rows, [columns.index(head) for _, numbers in table for head in numbers]] = values
    return Effects(
        values=grid,
        unchanged=unchanged.number,
        target=runs.target,
        over="heads",
        method=method,
        axes=("layer", "head"),
        labels=(tuple(layer.index for layer, _ in table), columns),
        places=tuple((layer.index, head) for layer, _ in table for head in columns),
        _ablate=ablate,
    )


@contextmanager
def _no_grad() -> Iterator[None]:
    """No gradients, and no inference mode, whose tensors do not tell that they were written to."""
    with torch.inference_mode(mode=False), torch.no_grad():
        yield


def _selected(
    unchanged: Unchanged,
    layers: tuple[int, ...] | slice | None,
    heads: tuple[int, ...] | slice | None,
) -> list[tuple[Layer, tuple[int, ...]]]:
    """The layers that are meant, in order, and the heads of each.

    Raises:
        IndexError: for a layer or head that the model does not have.
        ValueError: if none is meant.
    """
    own = unchanged.layers
    numbers = sorted(set(chosen(layers, len(own), "layers")))
    table = [
        (own[number], tuple(sorted(set(chosen(heads, len(own[number].heads), "heads")))))
        for number in numbers
    ]
    if not any(numbers for _, numbers in table):
        raise ValueError(f"layers={layers!r} and heads={heads!r} name no head of this model")
    return table


@contextmanager
def reports(
    total: int, progress: Progress, title: str = "measuring effects"
) -> Iterator[Callable[[int], None]]:
    """What is called with how many changes were made since it was called last."""
    if callable(progress):
        done = 0

        def report(count: int) -> None:
            nonlocal done
            done += count
            progress(done, total)

        yield report
        return
    with bar(total, progress=progress, title=title) as advance:
        yield advance
