"""What may differ between a run that was cut off and the one that goes on with it."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.gpt.checkpoint import CONFIG
from regard.gpt.config import GPTConfig
from regard.gpt.errors import CheckpointError
from regard.gpt.training.checkpoints import STATE, RunFolder
from regard.gpt.training.config import TrainConfig
from regard.gpt.training.schedule import context_length, learning_rate

if TYPE_CHECKING:
    from collections.abc import Mapping

_FREE = {"evaluate_every", "keep_every", "parallel"}
"""Fields that change nothing of what is computed, but for rounding."""


def recipe(state: Mapping[str, Any]) -> tuple[GPTConfig, TrainConfig]:
    """The shape and the recipe that a checkpoint was made by; `CheckpointError` if damaged."""
    try:
        return GPTConfig(**state["gpt"]), TrainConfig(**state["config"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"the checkpoint's state.json is damaged: {error}") from None


def recipe_of(folder: str | Path) -> tuple[GPTConfig, TrainConfig]:
    """The shape and the recipe of the run in a folder, as its latest checkpoint has them.

    Raises:
        CheckpointError: there is no checkpoint, or it is damaged.
    """
    return recipe(RunFolder.latest(Path(folder)).state())


def require_described(run: RunFolder, found: GPTConfig, expected: GPTConfig) -> None:
    """Hold a checkpoint's model to what its `state.json` says, which has a checksum.

    Weights that were written before they had the checksum of `config.json` don't tell whether that
    file was changed.

    Raises:
        CheckpointError: they differ; the message names the field and both values.
    """
    asked = asdict(expected)
    for name, value in asdict(found).items():
        if asked[name] != value:
            assert run.step is not None
            raise CheckpointError(
                f"{run.checkpoint(run.step) / CONFIG} is damaged: it says {name}={value!r}, and "
                f"{STATE} beside it {name}={asked[name]!r}; put that back, or start another run"
            )


def require_same(
    step: int,
    before: tuple[GPTConfig, TrainConfig],
    now: tuple[GPTConfig | None, TrainConfig | None],
) -> TrainConfig:
    """Hold a resumed run to its recipe, and tell the one it goes on by.

    `evaluate_every`, `keep_every` and `parallel` may change; so may `steps`, as long as the updates
    that were made would have been the same: with the schedule ``wsd``, before the learning rate
    falls and without a ramp that is under way.

    Args:
        step: updates made.
        before: the recipe of the checkpoint.
        now: the recipe asked for; None stands for that of the checkpoint. `vocab_size` is what the
            tokenizer made of it, so the one asked for is not compared.

    Raises:
        CheckpointError: a field differs; the message names it and both values.
    """
    gpt, config = before
    if now[0] is not None:
        _compare(gpt, replace(now[0], vocab_size=gpt.vocab_size), free=set())
    if now[1] is None:
        return config
    _compare(config, now[1], free=_FREE | {"steps"})
    if now[1].steps != config.steps:
        _require_steps(step, gpt.context, config, now[1])
    return now[1]


def _compare(before: Any, now: Any, *, free: set[str]) -> None:
    asked = asdict(now)
    for name, value in asdict(before).items():
        if name not in free and asked[name] != value:
            raise CheckpointError(
                f"{type(before).__name__}.{name} is {asked[name]!r} and the run that is to be "
                f"resumed has {value!r}; resume it as it is, or start another run"
            )


def _require_steps(step: int, context: int, before: TrainConfig, now: TrainConfig) -> None:
    what = f"TrainConfig.steps is {now.steps} and the run that is to be resumed has {before.steps}"
    if now.steps < step:
        raise CheckpointError(f"{what}, of which {step} are made")
    for number in range(step):
        if learning_rate(number, before) != learning_rate(number, now):
            raise CheckpointError(
                f"{what}: by schedule={before.schedule!r} the learning rate of update "
                f"{number + 1}, which was made, would have been another; a run with "
                "schedule='wsd' can be made longer until its learning rate falls"
            )
        if context_length(number, context, before) != context_length(number, context, now):
            raise CheckpointError(
                f"{what}: by ramp={before.ramp} the windows of update {number + 1}, which was "
                "made, would have been others; a run with ramp=0 can be made longer"
            )
