"""What recipes reach: the loss on held-out text after as many tokens, beside nanoGPT's own.

nanoGPT's recipe is that of its small model of characters for a CPU: windows at random places, a
hundred updates of warm-up, half a cosine down to a tenth of the learning rate. Each trains in the
precision that it has by default.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn

from benchmarks.gpt_training import LEARNING_RATE, SETTINGS
from benchmarks.nanogpt import NanoGPT, Update
from benchmarks.report import Report
from regard.gpt import GPTConfig, TrainConfig, prepare, python_texts, train
from regard.gpt.training.packed_corpus import Corpus
from regard.gpt.training.schedule import learning_rate

STEPS = 2000
_VALIDATED = 65_536  # tokens, as in a training run
_SMALL = SETTINGS[0]


def recipes(report: Report, steps: int = STEPS, seed: int = 0) -> None:
    """Print the table.

    Args:
        report: where to.
        steps: updates of each.
        seed: of first weights and batches.
    """
    report.table(
        f"recipes: validation after {steps} updates of {_SMALL.batch} × {_SMALL.context} "
        f"characters, {_SMALL.layers} layers, width {_SMALL.dim}",
        *(("model and recipe", 28), ("nats a character", 22), ("seconds", 9)),
    )
    default = TrainConfig(
        steps=steps, batch=_SMALL.batch, evaluate_every=steps, seed=seed, tokenizer="char"
    )
    nanogpts = replace(
        default, warmup=min(100, steps // 2), learning_rate=LEARNING_RATE, final=0.1, beta2=0.99,
        repeats=0.0, ramp=0.0,
    )  # fmt: skip
    shape = replace(_SMALL.config(), bias=True)  # regard's default
    quiet = Console(quiet=True)
    with tempfile.TemporaryDirectory() as folder:
        corpus = prepare(
            Path(folder, "corpus"), list(python_texts()), tokenizer="char", console=quiet
        )
        start = time.perf_counter()
        theirs = _loss(_nanogpt(corpus, nanogpts), corpus)
        report.row("nanoGPT, its own", f"{theirs:.3f}", f"{time.perf_counter() - start:.0f}")
        for name, recipe, gpt in (
            ("regard, nanoGPT's", nanogpts, _SMALL.config()),
            ("regard, the default", default, shape),
        ):
            start = time.perf_counter()
            result = train(Path(folder, name), corpus=corpus, gpt=gpt, config=recipe, console=quiet)
            loss = _loss(result.model, corpus)
            seconds = time.perf_counter() - start
            report.row(name, report.at_most(name, loss, round(theirs, 3), ".3f"), f"{seconds:.0f}")


def _nanogpt(corpus: Corpus, recipe: TrainConfig) -> NanoGPT:
    """Train nanoGPT's model."""
    torch.manual_seed(recipe.seed)
    text = torch.from_numpy(corpus.training.astype("int64"))
    shape: GPTConfig = replace(_SMALL.config(), vocab_size=corpus.tokenizer.vocab_size)
    model = NanoGPT(shape)
    update = Update(model, learning_rate=recipe.learning_rate, bfloat16=False)
    for step in range(recipe.steps):
        for group in update.optimizer.param_groups:
            group["lr"], group["betas"] = learning_rate(step, recipe), (0.9, recipe.beta2)
        starts = torch.randint(len(text) - shape.context, (recipe.batch, 1))
        rows = text[starts + torch.arange(shape.context + 1)]
        update(rows[:, :-1], rows[:, 1:])
    return model


def _loss(model: nn.Module, corpus: Corpus) -> float:
    """The mean over windows of held-out text, each predicted from its own start."""
    text = torch.from_numpy(corpus.validation[:_VALIDATED].astype("int64"))
    stop = (len(text) - 1) // _SMALL.context * _SMALL.context
    windows = (
        part.view(-1, _SMALL.context).split(64) for part in (text[:stop], text[1 : stop + 1])
    )
    model.eval()
    with torch.no_grad():
        losses = [
            _sum_of_losses(model(ids), targets) for ids, targets in zip(*windows, strict=True)
        ]
    return float(torch.stack(losses).sum()) / stop


def _sum_of_losses(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
