"""Measures changes of a model's attention, layer by layer, in batches of copies of the text.

Axes: K changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from regard._shapes import Float
from regard.lens.effect.runs import ModelRuns, Unchanged
from regard.lens.spans.weights import select
from regard.record.layer import Layer
from regard.record.readings import bar

Progress = bool | Callable[[int, int], None] | None


def measured(
    runs: ModelRuns,
    unchanged: Unchanged,
    changes: Sequence[tuple[int, Callable[..., None]]],
    size: int,
    report: Callable[[int], None],
) -> Float[Tensor, " K"]:
    """Measure the effect of each change, which is of one layer.

    Args:
        runs: runs the model.
        unchanged: its unchanged run.
        changes: the index of the layer, and a function that states the change, given an
            `Intervention` and the ``batch`` entry.
        size: maximum number of copies of the text in a batch.
        report: called with the number of changes made since its last call.

    Returns:
        The target under each change − the unchanged target; CPU, float64.
    """
    values = torch.zeros(len(changes), dtype=torch.float64, device="cpu")
    layers = {layer.index: layer for layer in unchanged.layers}
    firsts = [layers[index] for index, _ in changes]
    for some, targets in runs.each(firsts, [change for _, change in changes], size):
        values[some] = targets - unchanged.number
        report(len(some))
    return values


def grid(
    table: Sequence[tuple[Layer, tuple[int, ...]]], values: Float[Tensor, "*R K"]
) -> tuple[tuple[int, ...], Float[Tensor, "*R N H"]]:
    """Return all heads of some layers, and values of each layer's heads as a table.

    Args:
        table: the layers, and the heads of each.
        values: of each layer's heads, one after another.

    Returns:
        The heads, and the values, NaN where a layer lacks a head.
    """
    columns = tuple(sorted({head for _, numbers in table for head in numbers}))
    shape = (*values.shape[:-1], len(table), len(columns))
    filled = torch.full(shape, torch.nan, dtype=torch.float64, device="cpu")
    rows = [row for row, (_, numbers) in enumerate(table) for _ in numbers]
    filled[..., rows, [columns.index(head) for _, numbers in table for head in numbers]] = values
    return columns, filled


@contextmanager
def no_grad() -> Iterator[None]:
    """Disable gradients without inference mode, whose tensors have no version counter."""
    with torch.inference_mode(mode=False), torch.no_grad():
        yield


def selected(
    unchanged: Unchanged,
    layers: tuple[int, ...] | slice | None,
    heads: tuple[int, ...] | slice | None,
) -> list[tuple[Layer, tuple[int, ...]]]:
    """Return the selected layers, in order, and the heads of each.

    Raises:
        IndexError: for a layer or head that the model does not have.
        ValueError: if none is selected.
    """
    own = unchanged.layers
    table = select([len(layer.heads) for layer in own], (layers, heads))
    return [(own[place], numbers) for place, numbers in table]


@contextmanager
def reports(total: int, progress: Progress) -> Iterator[Callable[[int], None]]:
    """Yield a callback that takes the number of interventions made since its last call."""
    if callable(progress):
        done = 0

        def report(count: int) -> None:
            nonlocal done
            done += count
            progress(done, total)

        yield report
        return
    with bar(total, progress=progress, title="measuring effects") as advance:
        yield advance
