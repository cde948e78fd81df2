"""What int8 weights cost: the perplexity of the trained model on stories that it has not read."""

from __future__ import annotations

import math
from itertools import chain

import torch

from benchmarks.report import Report
from regard.gpt import evaluate, load
from regard.gpt.stories import stories

STORIES = 500
RISE = 0.005  # of perplexity, at most


def int8_weights(report: Report, count: int = STORIES) -> None:
    """Print the table.

    Args:
        report: where to.
        count: of stories, the first of those that are held out of training.
    """
    report.table(
        f"weights as int8: the trained model on {count} stories held out of its training",
        *(("weights", 34), ("MB", 9), ("perplexity", 12), ("rise", 18)),
    )
    model, tokenizer = load()
    int8, _ = load(weights="int8")
    assert tokenizer.end is not None
    texts = ((*tokenizer.encode(story.text), tokenizer.end) for story in stories(0, count))
    ids = torch.tensor(list(chain.from_iterable(texts)))
    losses = [evaluate(one, ids, end=tokenizer.end) for one in (model, int8)]
    for name, one, loss in zip(("float32", "int8"), (model, int8), losses, strict=True):
        size = sum(t.numel() * t.element_size() for t in one.state_dict().values())
        rise = math.expm1(loss - losses[0])
        cell = "" if one is model else report.at_most(name, rise, RISE, ".4%")
        report.row(name, f"{size / 1e6:.2f}", f"{math.exp(loss):.5f}", cell)
