"""How the heads of a small model formed, update by update."""

from __future__ import annotations

from math import isnan
from pathlib import Path

import torch

from regard.gpt import GPTConfig, History, TrainConfig, history, train
from regard.gpt.stories import corpus
from regard.record.roles import Role
from website.gallery.exhibit import Exhibit
from website.gallery.pictures import write_picture

__all__ = ["forming"]

_SHAPE = GPTConfig(
    vocab_size=512,
    context=128,
    layers=2,
    heads=4,
    dim=64,
    positions="rotary",
    qk_norm=True,
    initial_std=0.08,
)
_RECIPE = TrainConfig(
    steps=1500,
    batch=8,
    optimizer="muon",
    learning_rate=3e-3,
    embedding_rate=0.1,
    repeats=0.5,
    evaluate_every=500,
    record_every=50,
)
_SCORE = "previous_token"
_FIRST, _CHARACTERS = 10_000, 1_500_000


def forming(folder: Path) -> Exhibit:
    """Train a model of two layers, and write all its heads' patterns as one picture.

    A row of the picture is a head, a column is a recorded update.
    """
    texts = corpus(seed=_FIRST, characters=_CHARACTERS)
    run = folder / "run"
    train(run, texts=texts, gpt=_SHAPE, config=_RECIPE)
    recorded = history(run)
    heads = recorded.images.flatten(1, 2).float()  # (M, N·H, S, S)
    opacity = (heads * 4).clamp(0, 1).sqrt()  # full colour from a weight of a quarter on
    write_picture(
        folder / "heads.png",
        torch.cat([torch.cat(list(one), 1) for one in opacity.transpose(0, 1)]),
    )
    scores = recorded.score(_SCORE).flatten(1).tolist()
    return Exhibit(
        name="forming",
        title="How heads form",
        text=(
            f"A model of {_SHAPE.layers} layers of {_SHAPE.heads} heads, trained for "
            f"{_RECIPE.steps:,} updates on stories and on random tokens that come twice. Each "
            "picture is a head's pattern on one text of held-out words, twice over; below it "
            "stands what the head is named for. The curves are each head's weight on the token "
            "before. "
            f"{_first(recorded)}"
        ),
        viewer="forming.js",
        data={
            "steps": list(recorded.steps),
            "heads": _SHAPE.heads,
            "roles": [[name for layer in update for name in layer] for update in recorded.roles],
            "score": "weight on the token before",
            "scores": [[None if isnan(x) else round(x, 4) for x in update] for update in scores],
        },
    )


def _first(recorded: History) -> str:
    """Which heads are named previous-token heads at the end, and since when."""
    layers = recorded.roles[-1]
    heads = []
    for layer, names in enumerate(layers):
        for head, name in enumerate(names):
            if name == Role.PREVIOUS.value:
                steps = zip(recorded.steps, recorded.roles, strict=True)
                first = next(step for step, roles in steps if roles[layer][head] == name)
                heads.append(f"{layer}·{head} from update {first} on")
    return f"Here previous-token heads are {', '.join(heads)}." if heads else ""
