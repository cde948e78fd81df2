"""Resumes a training run from its latest checkpoint, and checks which settings may differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from regard.gpt.config import GPTConfig
from regard.gpt.errors import CheckpointError
from regard.gpt.folder import CONFIG
from regard.gpt.tokenizer import Tokenizer
from regard.gpt.training._sources import source_of
from regard.gpt.training.checkpoints import (
    CORPUS,
    STATE,
    FolderLock,
    TrainingRunFolder,
    lock_folder,
)
from regard.gpt.training.config import TrainConfig
from regard.gpt.training.metrics import print_line
from regard.gpt.training.packed_corpus import Corpus, open_corpus
from regard.gpt.training.ranks import Ranks
from regard.gpt.training.result import TrainState
from regard.gpt.training.schedule import context_length, is_focused, learning_rate
from regard.gpt.training.setup import Setup, TrainingArguments, equal_facts, make_batches

_FREE = {"evaluate_every", "keep_every", "log_every"}
"""Fields that do not change the computation, except its rounding."""


def resumed_training_run(args: TrainingArguments, ranks: Ranks, lock: FolderLock) -> Setup:
    """Set up a training run from its latest checkpoint; see `regard.gpt.train` for errors."""
    with ranks.synchronized(long=True) as status:
        folder = TrainingRunFolder.latest(args.root)
        if ranks.is_main:
            lock_folder(lock, args.root)
            folder = TrainingRunFolder.latest(args.root)  # another process may have trained
        model, tokenizer, state = folder.load()
        try:
            progress = TrainState(**state["progress"])
            computed, origin = dict(state["computed"]), dict(state["corpus"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint's state.json is damaged: no {error}") from None
        gpt, config = before = recipe(state)
        _require_described(folder, model.config, gpt)
        config = _require_same_recipe(progress.step, before, args.gpt, args.config)
        corpus = _same_corpus(folder, tokenizer, origin, args, config)
        batches = make_batches(corpus, gpt, config)
        status.equal |= {"the latest update": progress.step}
        status.equal |= equal_facts(gpt, config, corpus)
    ranks.require_shared(args.root)
    if ranks.size > 1:
        print_line(args.console, f"{ranks.size} processes")
    return Setup(
        folder=folder,
        config=config,
        corpus=corpus,
        corpus_origin=origin,
        batches=batches,
        model=model.to(args.device).train(),
        bfloat16=computed["bfloat16"],
        compile=computed["compile"],
        state=progress,
        resumes=True,
    )


def _same_corpus(
    folder: TrainingRunFolder,
    tokenizer: Tokenizer,
    origin: Mapping[str, Any],
    args: TrainingArguments,
    config: TrainConfig,
) -> Corpus:
    """Return the corpus of the training run.

    Raises:
        CheckpointError: if it has changed, or the arguments name another one.
    """
    if isinstance(args.corpus, Corpus):
        corpus = args.corpus
    else:
        own = folder.path / CORPUS if origin["path"] is None else Path(origin["path"])
        corpus = open_corpus(args.corpus or own)
    if corpus.tokenizer.to_json() != tokenizer.to_json():
        raise CheckpointError(
            f"{corpus.folder} was made with another tokenizer than the model in {folder.root}; "
            "resume with the corpus that the training run was started with"
        )
    if corpus.fingerprint != origin["fingerprint"]:
        raise CheckpointError(
            f"{corpus.folder} is not the corpus that the training run in {folder.root} was "
            "started with: its checksum differs"
        )
    if args.texts is not None:
        source = source_of(
            args.texts, validation=config.validation, seed=config.seed, utf8_only=args.utf8_only
        )
        for _ in source:
            pass  # files are described only after they have been read
        if source.describe() != corpus.manifest["source"]:
            raise CheckpointError(
                f"the text is not the one that the training run in {folder.root} was started with: "
                "its checksum differs; leave it out, or start another training run"
            )
    return corpus


def recipe(state: Mapping[str, Any]) -> tuple[GPTConfig, TrainConfig]:
    """Return a checkpoint's architecture and recipe; `CheckpointError` if it is damaged."""
    try:
        return GPTConfig(**state["gpt"]), TrainConfig(**state["config"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"the checkpoint's state.json is damaged: {error}") from None


def recipe_of(folder: str | Path) -> tuple[GPTConfig, TrainConfig]:
    """Return the architecture and recipe of a folder's training run, from its latest checkpoint.

    Raises:
        CheckpointError: there is no checkpoint, or it is damaged.

    Example:
        >>> import io, tempfile
        >>> from rich.console import Console
        >>> from regard.gpt import GPTConfig, TrainConfig, recipe_of, train
        >>> gpt = GPTConfig(layers=1, heads=1, dim=4, context=8)
        >>> config = TrainConfig(tokenizer="char", steps=2)
        >>> quiet = Console(file=io.StringIO())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = train(folder, texts=["abc " * 200], gpt=gpt, config=config, console=quiet)
        ...     shape, recipe = recipe_of(folder)
        >>> shape.dim, recipe == config
        (4, True)
    """
    return recipe(TrainingRunFolder.latest(Path(folder)).state())


def _require_described(folder: TrainingRunFolder, config: GPTConfig, expected: GPTConfig) -> None:
    """Compare a checkpoint's model with its `state.json`, which has a checksum.

    Weights of earlier versions have no checksum of `config.json`, so a change of it would pass.

    Raises:
        CheckpointError: they differ; the message names the field and both values.
    """
    wanted = asdict(expected)
    for name, value in asdict(config).items():
        if wanted[name] != value:
            raise CheckpointError(
                f"{folder.latest_checkpoint / CONFIG} is damaged: it says {name}={value!r}, and "
                f"{STATE} beside it {name}={wanted[name]!r}; put that back, or start another "
                "training run"
            )


def _require_same_recipe(
    step: int,
    before: tuple[GPTConfig, TrainConfig],
    new_gpt: GPTConfig | None,
    new_config: TrainConfig | None,
) -> TrainConfig:
    """Check the recipe of a resumed training run against the checkpoint's, and return it.

    `evaluate_every`, `keep_every` and `log_every` may change. So may `steps`, if the updates made
    so far would have been the same: with the schedule ``wsd``, before the learning rate falls and
    after the ramp, and without a focus.

    Args:
        step: number of updates made.
        before: the recipe of the checkpoint.
        new_gpt: the caller's architecture; None is that of the checkpoint. `vocab_size` is the
            tokenizer's, so it is not compared.
        new_config: the caller's recipe; None is that of the checkpoint.

    Raises:
        CheckpointError: a field differs; the message names it and both values.
    """
    gpt, config = before
    if new_gpt is not None:
        _compare(gpt, replace(new_gpt, vocab_size=gpt.vocab_size), free=set())
    if new_config is None:
        return config
    _compare(config, new_config, free=_FREE | {"steps"})
    if new_config.steps != config.steps:
        _require_steps(step, gpt.context, config, new_config)
    return new_config


def _compare(before: Any, now: Any, *, free: set[str]) -> None:
    wanted = asdict(now)
    for name, value in asdict(before).items():
        if name not in free and wanted[name] != value:
            raise CheckpointError(
                f"{type(before).__name__}.{name} is {wanted[name]!r} and the training run that "
                f"is to be resumed has {value!r}; resume it as it is, or start another training run"
            )


def _require_steps(step: int, context: int, before: TrainConfig, now: TrainConfig) -> None:
    what = (
        f"TrainConfig.steps is {now.steps} and the training run that is to be resumed has "
        f"{before.steps}"
    )
    if now.steps < step:
        raise CheckpointError(f"{what}, of which {step} are made")
    for number in range(step):
        if learning_rate(number, before) != learning_rate(number, now):
            raise CheckpointError(
                f"{what}: by schedule={before.schedule!r} the learning rate of update "
                f"{number + 1}, which was made, would have been another; a training run with "
                "schedule='wsd', ramp=0 and focus=0 can be made longer until its learning rate "
                "falls"
            )
        if context_length(number, context, before) != context_length(number, context, now):
            raise CheckpointError(
                f"{what}: by ramp={before.ramp} the windows of update {number + 1}, which was "
                "made, would have been others; a training run with ramp=0 can be made longer"
            )
        if is_focused(number, before) != is_focused(number, now):
            raise CheckpointError(
                f"{what}: by focus={before.focus} the loss of update {number + 1}, which was made, "
                "would have been another; a training run with focus=0 can be made longer"
            )
