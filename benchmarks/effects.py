"""What effects cost: all heads, and all tokens, of the model that comes with the package."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch

import regard
from benchmarks.report import milliseconds
from regard.cli.timing import interleaved
from regard.gpt import load

if TYPE_CHECKING:
    from benchmarks.report import Report

LENGTH = 512
FORWARDS = 12  # that the effects of all 16 heads may take


def effects(report: Report) -> None:
    """Print the table."""
    model, _ = load()
    ids = torch.randint(model.config.vocab_size, (LENGTH,))
    measure = partial(regard.lens.effects, model, ids, regard.lens.LogProbability(0))
    heads = model.config.layers * model.config.heads
    tasks: dict[str, Callable[[], object]] = {
        "one forward": partial(model, ids),
        f"{heads} heads ablated": measure,
        f"{heads} heads, by gradient": partial(measure, method="gradient"),
        "64 blocks of keys hidden": partial(measure, over="keys"),
    }
    report.table(
        f"effects: the shipped model, {LENGTH} tokens",
        *(("what", 26), ("ms", 9), ("forwards", 14)),
    )
    with torch.no_grad():
        seconds = interleaved(tasks).seconds
    for name, taken in seconds.items():
        limit = FORWARDS if tasks[name] is measure else None
        ratio = report.at_most(name, taken / seconds["one forward"], limit)
        report.row(name, milliseconds(taken), ratio)
