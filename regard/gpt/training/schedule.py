"""Schedules of the learning rate, the context length and the focus."""

from __future__ import annotations

from math import cos, pi

from regard.gpt.training.config import TrainConfig


def learning_rate(step: int, config: TrainConfig) -> float:
    """Return the learning rate of an update.

    It rises linearly to `config.learning_rate` at update `warmup - 1`, and is `config.final` of it
    at the last update. In between it falls along half a cosine (Loshchilov and Hutter, "SGDR",
    2017, eq. 5) or, with the schedule `wsd` (warmup, stable, decay: Hu et al., "MiniCPM", 2024,
    arXiv:2404.06395), stays and falls in a straight line over the last `config.decay` of the
    updates. It depends on its arguments alone, so a checkpoint need not store it.

    Args:
        step: the update's number, from 0.
        config: the recipe.

    >>> from regard.gpt import TrainConfig
    >>> recipe = TrainConfig(steps=12, warmup=2, learning_rate=1.0, final=0.1)
    >>> [round(learning_rate(step, recipe), 3) for step in (0, 1, 6, 11)]
    [0.5, 1.0, 0.55, 0.1]
    >>> recipe = TrainConfig(
    ...     steps=12, warmup=2, learning_rate=1.0, final=0.0, schedule="wsd", decay=0.5
    ... )
    >>> [round(learning_rate(step, recipe), 3) for step in (0, 1, 5, 8, 11)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    """
    if step < config.warmup:
        return config.learning_rate * (step + 1) / config.warmup
    first = max(config.warmup - 1, 0)
    if config.schedule == "cosine":
        progress = (step - first) / max(config.steps - 1 - first, 1)
        height = (1 + cos(pi * progress)) / 2
    else:
        falling = max(1, round(config.decay * config.steps))
        height = min(1.0, (config.steps - 1 - step) / falling)
    return config.learning_rate * (config.final + (1 - config.final) * height)


def context_length(step: int, context: int, config: TrainConfig) -> int:
    """Return the context length of an update's batch.

    Training begins with an eighth of the context, doubled at each third of the first
    `config.ramp` of the updates. An untrained head averages over all tokens, so each of few tokens
    has a larger weight, and heads learn sooner where to attend (sequence length warm-up: Li et al.,
    "The Stability-Efficiency Dilemma", 2022).

    Args:
        step: the update's number, from 0.
        context: T of the model.
        config: the recipe.

    >>> from regard.gpt import TrainConfig
    >>> recipe = TrainConfig(steps=20, warmup=0, ramp=0.6)
    >>> [context_length(step, 256, recipe) for step in (0, 4, 8, 12)]
    [32, 64, 128, 256]
    """
    ramp = config.ramp * config.steps
    doublings = 3 if step >= ramp else int(3 * step / ramp)
    return max(min(2, context), context >> (3 - doublings))


def is_focused(step: int, config: TrainConfig) -> bool:
    """Return whether an update belongs to the first share `config.focus` of all.

    >>> from regard.gpt import TrainConfig
    >>> recipe = TrainConfig(steps=20, warmup=0, focus=0.1)
    >>> [is_focused(step, recipe) for step in (0, 1, 2)]
    [True, True, False]
    """
    return step < config.focus * config.steps
