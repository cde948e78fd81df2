"""Train the model that comes with the package, and one without attention to compare it with.

Both read stories (`regard.gpt.stories`) and, as a smaller share, the documentation of Python. The
stories of the seeds below `FIRST` are held out.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch

from regard.gpt import GPTConfig, Tokenizer, TrainConfig, prepare, python_texts, save, train
from regard.gpt.link_accuracy import Predict, bigram, likeliest, link_accuracy, twin_accuracy
from regard.gpt.stories import Kind, corpus, stories, twins

FIRST = 10_000
HELD_OUT = 1000  # stories that accuracy is measured on
TWINS = 216  # pairs of a kind, likewise
BASELINE_STEPS = 3000  # updates of the model without attention
BIGRAM = 20_000  # stories whose pairs of tokens are counted
SHAPE = GPTConfig(
    vocab_size=3072,
    layers=4,
    heads=5,
    dim=160,
    initial_std=0.08,
    positions="rotary",
    qk_norm=True,
)
RECIPE = TrainConfig(
    steps=80_000,
    batch=4,
    optimizer="muon",
    learning_rate=1.5e-3,
    embedding_rate=0.2,
    schedule="wsd",
    decay=0.35,
    beta2=0.999,
    weight_decay=0.02,
    repeats=0.4,
    ramp=0.4,
    focus=0.25,
    document_mask=True,
    validation=0.01,
    evaluate_every=1000,
)


def main(folder: Path) -> None:
    """Train both, and write the model in half precision with the record of its training."""
    made = corpus(seed=FIRST, characters=100_000_000)
    documentation = python_texts()
    texts = prepare(
        folder / "corpus",
        [*made, *documentation],
        vocab_size=SHAPE.vocab_size,
        validation=RECIPE.validation,
    )
    # A window of one token: each position sees itself alone.
    without_attention = train(
        folder / "without-attention",
        corpus=texts,
        gpt=replace(SHAPE, window=1),
        config=replace(RECIPE, steps=BASELINE_STEPS),
    )
    result = train(folder / "training", corpus=texts, gpt=SHAPE, config=RECIPE)
    tokens = torch.tensor([i for text in made[:BIGRAM] for i in result.tokenizer.encode(text)])
    sizes = [sum(map(len, some)) for some in (made, documentation)]
    record = result.record | {
        "stories": {
            "stories": len(made),
            "first": FIRST,
            "documentation": sizes[1] / sum(sizes),
        },
        "baselines": {
            "bigram": measured(bigram(tokens, SHAPE.vocab_size), result.tokenizer),
            "without attention": {
                "steps": BASELINE_STEPS,
                **measured(likeliest(without_attention.model), without_attention.tokenizer),
            },
        },
    }
    save(folder, result.model.half(), result.tokenizer, training=record)


def measured(predict: Predict, tokenizer: Tokenizer) -> dict[str, object]:
    """Shares of the decided words of held-out stories, and of twins, that it predicts."""
    measured = link_accuracy(predict, tokenizer, stories(0, HELD_OUT), context=SHAPE.context)
    pairs = {kind: twins(kind, TWINS) for kind in Kind}
    both = {
        kind.name: twin_accuracy(predict, tokenizer, some, context=SHAPE.context).both / TWINS
        for kind, some in pairs.items()
    }
    return {"accuracy": {kind.name: one.share for kind, one in measured.items()}, "twins": both}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
