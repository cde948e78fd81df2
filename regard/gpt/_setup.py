"""How a run comes to be: from nothing, or from where it was cut off."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import torch

from regard._files import require_writable
from regard.gpt._checkpoints import CORPUS, METRICS, RunFolder
from regard.gpt._gains import Choice, bfloat16, compiling, this_machine
from regard.gpt._loop import Loop, Progressed, say
from regard.gpt._metrics import MetricsFile, Rates
from regard.gpt._resume import recipe, require_same
from regard.gpt._sources import source_of
from regard.gpt._update import Updates, make_optimizer, restore_optimizer
from regard.gpt.batches import Batches
from regard.gpt.checkpoint import CheckpointError
from regard.gpt.corpus import python_texts
from regard.gpt.history import Recorder
from regard.gpt.model import GPT
from regard.gpt.prepared import Corpus, open_corpus, prepare
from regard.gpt.train_config import TrainConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from rich.console import Console
    from torch import Tensor

    from regard.gpt._checkpoints import Restored
    from regard.gpt.config import GPTConfig
    from regard.gpt.tokenizer import Tokenizer

_MEASURED = 65_536  # validations of a large text would else take longer than the training between


class Begun:
    """A run from nothing: its folder, which goes again where no update was made.

    Args:
        root: the folder that the user named.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._run: RunFolder | None = None
        self._loop: Loop | None = None

    def __enter__(self) -> Self:
        self._existed = self._root.exists()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None or (self._loop is not None and self._loop.at.step > 0):
            return
        if self._run is not None:
            shutil.rmtree(self._run.path, ignore_errors=True)
        if not self._existed:
            with suppress(OSError):  # it holds something, or was never made
                self._root.rmdir()

    def loop(
        self,
        texts: Sequence[str] | Path | None,
        corpus: str | Path | Corpus | None,
        gpt: GPTConfig,
        config: TrainConfig,
        device: torch.device,
        console: Console,
    ) -> Loop:
        """Prepare everything; `regard.gpt.train` documents what can go wrong."""
        require_writable(self._root)  # better now than after an hour
        self._run = run = RunFolder.fresh(self._root)
        if corpus is None:
            opened = prepare(
                run.path / CORPUS,
                python_texts() if texts is None else texts,
                tokenizer=config.tokenizer,
                vocab_size=gpt.vocab_size,
                validation=config.validation,
                seed=config.seed,
                console=console,
            )
        else:
            opened = corpus if isinstance(corpus, Corpus) else open_corpus(corpus)
            config = _as_prepared(config, opened)
        gpt = replace(gpt, vocab_size=opened.tokenizer.vocab_size)
        batches = _batches(opened, gpt, config)
        torch.manual_seed(config.seed)
        model = GPT(gpt).to(device).train()
        choices = _choices(model, config, device)
        for name, choice in choices.items():
            say(console, f"{name}: {'yes' if choice.on else 'no'}, {choice.reason}")
        say(
            console,
            f"corpus: {len(opened.training):,} tokens to train on, {len(opened.validation):,} held "
            "out",
        )
        path = None if corpus is None else str(opened.folder.resolve())
        self._loop = _assembled(
            run,
            opened,
            batches,
            model,
            config,
            {name: choice.on for name, choice in choices.items()},
            {"corpus": {"path": path, "fingerprint": opened.fingerprint}},
            Progressed(),
        )
        return self._loop


def resumed(
    root: Path,
    texts: Sequence[str] | Path | None,
    corpus: str | Path | Corpus | None,
    asked: tuple[GPTConfig | None, TrainConfig | None],
    device: torch.device,
    console: Console,
) -> Loop:
    """A run as its latest checkpoint left it; `regard.gpt.train` documents what can go wrong."""
    run = RunFolder.latest(root)
    restored = run.restore()
    state = restored.state
    try:
        progress = Progressed(**state["progress"])
        computed, text = dict(state["computed"]), dict(state["corpus"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"the checkpoint's state.json is damaged: no {error}") from None
    before = recipe(state)
    config = require_same(progress.step, before, asked)
    opened = _same_corpus(run, restored, text, texts, corpus, config)
    batches = _batches(opened, before[0], config)
    model = restored.model.to(device).train()
    loop = _assembled(run, opened, batches, model, config, computed, {"corpus": text}, progress)
    try:
        restore_optimizer(model, loop.updates.optimizer, restored.optimizer)
    except KeyError as error:
        raise CheckpointError(f"the checkpoint's optimizer lacks {error}; it is damaged") from None
    run.settle(loop.record(interrupted=False), config.keep_every)
    say(console, f"{root}: going on after update {progress.step}")
    return loop


def _assembled(
    run: RunFolder,
    corpus: Corpus,
    batches: Batches,
    model: GPT,
    config: TrainConfig,
    computed: dict[str, bool],
    fixed: dict[str, Any],
    at: Progressed,
) -> Loop:
    """Put the parts of a run together."""
    device = next(model.parameters()).device
    return Loop(
        folder=run,
        config=config,
        corpus=corpus,
        batches=batches,
        validation=torch.from_numpy(corpus.validation[:_MEASURED].astype("int64")).to(device),
        updates=Updates(
            model=model,
            optimizer=make_optimizer(model, config),
            config=config,
            bfloat16=computed["bfloat16"],
            end=_end(corpus.tokenizer) if config.document_mask else None,
            run=cast(
                "Callable[..., Tensor]", torch.compile(model) if computed["compile"] else model
            ),
        ),
        rates=Rates(
            model.config,
            _multiplied(model),
            device,
            bfloat16=computed["bfloat16"],
            steps=config.steps,
            step=at.step,
            seconds=at.seconds,
        ),
        metrics=MetricsFile(run.path / METRICS, at.step),
        recorder=_recorder(run, corpus, model, config, at.step),
        fixed={
            "gpt": asdict(model.config),
            "config": asdict(config),
            "computed": computed,
            **fixed,
        },
        at=at,
    )


def _choices(model: GPT, config: TrainConfig, device: torch.device) -> dict[str, Choice]:
    machine = this_machine(device)
    return {
        "bfloat16": bfloat16(config.precision, machine, dim=model.config.dim),
        "compile": compiling(config.compile, machine),
    }


def _multiplied(model: GPT) -> int:
    """Parameters that each token is multiplied with: all but the table of positions."""
    return sum(p.numel() for name, p in model.named_parameters() if name != "wpe.weight")


def _batches(corpus: Corpus, gpt: GPTConfig, config: TrainConfig) -> Batches:
    return Batches(
        tokens=corpus.training, context=gpt.context, vocab_size=gpt.vocab_size, config=config
    )


def _recorder(
    run: RunFolder, corpus: Corpus, model: GPT, config: TrainConfig, step: int
) -> Recorder | None:
    if not config.record_every:
        return None
    context, tokenizer = model.config.context, corpus.tokenizer
    ids = torch.tensor(tokenizer.encode(config.probe)[:context])
    if not config.probe:
        once = torch.from_numpy(corpus.validation[: max(1, context // 2)].astype("int64"))
        ids = torch.cat([once, once])[:context]
    return Recorder(run, ids.to(next(model.parameters()).device), tokenizer, step)


def _end(tokenizer: Tokenizer) -> int:
    if tokenizer.end is None:
        raise ValueError(
            "TrainConfig.document_mask is True and the tokenizer has no token that ends a "
            "document; train with tokenizer='bpe', or without the mask"
        )
    return tokenizer.end


def _as_prepared(config: TrainConfig, corpus: Corpus) -> TrainConfig:
    """The recipe, with what the corpus has settled already.

    Raises:
        ValueError: the recipe asks for something else.
    """
    manifest, usual = corpus.manifest, TrainConfig()
    settled = {"validation": manifest["split"]["validation"]}
    if manifest["kind"] != "given":
        settled["tokenizer"] = manifest["kind"]
    for name, value in settled.items():
        if getattr(config, name) not in {value, getattr(usual, name)}:
            raise ValueError(
                f"TrainConfig.{name} is {getattr(config, name)!r} and the corpus in "
                f"{corpus.folder} was prepared with {value!r}; leave it out, or prepare the corpus "
                "anew"
            )
    return replace(config, **settled)


def _same_corpus(
    run: RunFolder,
    restored: Restored,
    text: dict[str, Any],
    texts: Sequence[str] | Path | None,
    corpus: str | Path | Corpus | None,
    config: TrainConfig,
) -> Corpus:
    """The corpus of a run that goes on.

    Raises:
        CheckpointError: it is another one now.
    """
    if isinstance(corpus, Corpus):
        opened = corpus
    else:
        kept = run.path / CORPUS if text["path"] is None else Path(text["path"])
        opened = open_corpus(corpus or kept)
    if opened.tokenizer.to_json() != restored.tokenizer.to_json():
        raise CheckpointError(
            f"{opened.folder} was made with another tokenizer than the model in {run.root}; "
            "resume with the corpus that the run was started with"
        )
    if opened.fingerprint != text["fingerprint"]:
        raise CheckpointError(
            f"{opened.folder} is not the corpus that the run in {run.root} was started with: its "
            "checksum differs"
        )
    if texts is not None:
        source = source_of(texts, validation=config.validation, seed=config.seed)
        for _ in source:
            pass  # files are described when they have been read
        if source.describe() != opened.manifest["source"]:
            raise CheckpointError(
                f"the text is not the one that the run in {run.root} was started with: its "
                "checksum differs; leave it out, or start another run"
            )
    return opened
