"""How a run comes to be: from nothing, or from where it was cut off."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version as regard_version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import torch

from regard._files import require_writable
from regard.gpt._incremental import evaluating
from regard.gpt.errors import CheckpointError
from regard.gpt.model import GPT
from regard.gpt.training._loop import Loop, TrainState, say
from regard.gpt.training._optimizer_shards import read_optimizer
from regard.gpt.training._sources import source_of
from regard.gpt.training.batches import Batches
from regard.gpt.training.checkpoints import CORPUS, RunFolder, take
from regard.gpt.training.config import TrainConfig
from regard.gpt.training.corpus import python_texts
from regard.gpt.training.hardware import Decision, bfloat16, compiling, this_machine
from regard.gpt.training.history import HistoryWriter
from regard.gpt.training.metrics import Rates
from regard.gpt.training.packed_corpus import Corpus, open_corpus, prepare
from regard.gpt.training.parallel import spread
from regard.gpt.training.resume import recipe, require_described, require_same
from regard.gpt.training.update import Updates, make_optimizer, restore_optimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from rich.console import Console
    from torch import Tensor

    from regard.gpt.config import GPTConfig
    from regard.gpt.tokenizer import Tokenizer
    from regard.gpt.training._folder_lock import FolderLock
    from regard.gpt.training.checkpoints import Restored
    from regard.gpt.training.ranks import Ranks

_MEASURED = 65_536  # validations of a large text would else take longer than the training between


class Begun:
    """A run from nothing: its folder, which goes again where no update was made.

    Args:
        root: the folder that the user named.
        ranks: which begin it; rank 0 makes and removes folders.
        hold: of that folder.
    """

    def __init__(self, root: Path, ranks: Ranks, hold: FolderLock) -> None:
        self._root, self._ranks, self._hold = root, ranks, hold
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
        if not self._ranks.leads:
            return
        if self._run is not None:
            shutil.rmtree(self._run.path, ignore_errors=True)
        if not self._existed:
            self._hold.release()
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
        *,
        utf8_only: bool,
    ) -> Loop:
        """Prepare everything; `regard.gpt.train` documents what can go wrong."""
        ranks = self._ranks
        with ranks.agreeing() as said:
            if ranks.leads:
                require_writable(self._root)  # better now than after an hour
                take(self._hold, self._root)
                self._run = RunFolder.fresh(self._root)
                said.own["run"] = self._run.path.name
        run = self._run or RunFolder(self._root, said.all[0]["run"], None)
        ranks.require_shared(self._root)
        if corpus is None:
            with ranks.agreeing(patient=True):
                if ranks.leads:
                    prepare(
                        run.path / CORPUS,
                        python_texts() if texts is None else texts,
                        tokenizer=config.tokenizer,
                        vocab_size=gpt.vocab_size,
                        validation=config.validation,
                        seed=config.seed,
                        utf8_only=utf8_only,
                        console=console,
                    )
        with ranks.agreeing(patient=True) as said:
            if corpus is None:
                opened = open_corpus(run.path / CORPUS, verify=not ranks.leads)
            else:
                opened = corpus if isinstance(corpus, Corpus) else open_corpus(corpus)
                config = _as_prepared(config, opened)
            gpt = replace(gpt, vocab_size=opened.tokenizer.vocab_size)
            batches = _batches(opened, gpt, config)
            torch.manual_seed(config.seed)
            model = GPT(gpt).to(device).train()
            choices = _choices(model, config, device)
            said.same |= _facts(gpt, config, opened)
            said.same |= {name: choice.on for name, choice in choices.items()}
        if ranks.size > 1:
            say(console, f"{ranks.size} processes: {config.parallel}")
        for name, choice in choices.items():
            say(console, f"{name}: {'yes' if choice.on else 'no'}, {choice.reason}")
        say(
            console,
            f"corpus: {len(opened.training):,} tokens to train on, {len(opened.validation):,} held "
            "out",
        )
        path = None if corpus is None else str(opened.folder.resolve())
        self._loop = _assembled(
            ranks,
            run,
            opened,
            batches,
            model,
            config,
            {name: choice.on for name, choice in choices.items()},
            {"corpus": {"path": path, "fingerprint": opened.fingerprint}},
            TrainState(),
        )
        return self._loop


def resumed(
    ranks: Ranks,
    hold: FolderLock,
    root: Path,
    texts: Sequence[str] | Path | None,
    corpus: str | Path | Corpus | None,
    asked: tuple[GPTConfig | None, TrainConfig | None],
    device: torch.device,
    console: Console,
    *,
    utf8_only: bool,
) -> Loop:
    """A run as its latest checkpoint left it; `regard.gpt.train` documents what can go wrong."""
    with ranks.agreeing(patient=True) as said:
        run = RunFolder.latest(root)
        if ranks.leads:
            take(hold, root)
            run = RunFolder.latest(root)  # which was another one while somebody trained
        restored = run.restore()
        state = restored.state
        try:
            progress = TrainState(**state["progress"])
            computed, text = dict(state["computed"]), dict(state["corpus"])
            shards = dict(state.get("shards", {}))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint's state.json is damaged: no {error}") from None
        before = recipe(state)
        require_described(run, restored.model.config, before[0])
        config = require_same(progress.step, before, asked)
        opened = _same_corpus(run, restored, text, texts, corpus, config, utf8_only=utf8_only)
        batches = _batches(opened, before[0], config)
        said.same |= {"the latest update": progress.step, **_facts(before[0], config, opened)}
    ranks.require_shared(root)
    if ranks.size > 1:
        say(console, f"{ranks.size} processes: {config.parallel}")
    model = restored.model.to(device).train()
    fixed = {"corpus": text}
    loop = _assembled(ranks, run, opened, batches, model, config, computed, fixed, progress)
    with ranks.agreeing():
        folder = run.checkpoint(progress.step)
        kept = read_optimizer(folder, model, shards, ranks)
        restore_optimizer(model, loop.updates.optimizer, kept)
    with ranks.agreeing():
        if ranks.leads:
            run.settle(loop.record(interrupted=False), config.keep_every)
    say(console, f"{root}: going on after update {progress.step}")
    return loop


def _facts(gpt: GPTConfig, config: TrainConfig, corpus: Corpus) -> dict[str, Any]:
    """What has to be the same on all ranks."""
    return {
        "the version of regard": regard_version("regard"),
        "the version of torch": str(torch.__version__),
        "the corpus": corpus.fingerprint,
        **{f"GPTConfig.{name}": value for name, value in asdict(gpt).items()},
        **{f"TrainConfig.{name}": value for name, value in asdict(config).items()},
    }


def _assembled(
    ranks: Ranks,
    run: RunFolder,
    corpus: Corpus,
    batches: Batches,
    model: GPT,
    config: TrainConfig,
    computed: dict[str, bool],
    fixed: dict[str, Any],
    at: TrainState,
) -> Loop:
    """Put the parts of a run together."""
    device = next(model.parameters()).device
    multiplied = _multiplied(model)
    shared = spread(model, ranks, config.parallel)
    return Loop(
        ranks=ranks,
        folder=run,
        config=config,
        corpus=corpus,
        batches=batches,
        validation=torch.from_numpy(corpus.validation[:_MEASURED].astype("int64")).to(device),
        updates=Updates(
            spread=shared,
            ranks=ranks,
            optimizer=make_optimizer(model, config),
            config=config,
            bfloat16=computed["bfloat16"],
            end=_end(corpus.tokenizer) if config.document_mask else None,
            run=cast(
                "Callable[..., Tensor]",
                torch.compile(shared.module) if computed["compile"] else shared.module,
            ),
        ),
        rates=Rates(
            model.config,
            multiplied,
            device,
            bfloat16=computed["bfloat16"],
            ranks=ranks.size,
            steps=config.steps,
            step=at.step,
            seconds=at.seconds,
        ),
        recorder=_recorder(ranks, run, corpus, model, config, at.step),
        fixed={
            "gpt": asdict(model.config),
            "config": asdict(config),
            "computed": computed,
            **fixed,
        },
        at=at,
    )


def _choices(model: GPT, config: TrainConfig, device: torch.device) -> dict[str, Decision]:
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
    ranks: Ranks, run: RunFolder, corpus: Corpus, model: GPT, config: TrainConfig, step: int
) -> Callable[[int, GPT], object] | None:
    if not config.record_every:
        return None
    context, tokenizer = model.config.context, corpus.tokenizer
    ids = torch.tensor(tokenizer.encode(config.probe)[:context])
    if not config.probe:
        once = torch.from_numpy(corpus.validation[: max(1, context // 2)].astype("int64"))
        ids = torch.cat([once, once])[:context]
    ids = ids.to(next(model.parameters()).device)
    return HistoryWriter(run, ids, tokenizer, step) if ranks.leads else partial(_follow, ids)


def _follow(ids: Tensor, _step: int, model: GPT) -> None:
    """Run the model along with rank 0, which records it, and may need this rank's piece of it."""
    with evaluating(model):
        model(ids)


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
    *,
    utf8_only: bool,
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
        source = source_of(
            texts, validation=config.validation, seed=config.seed, utf8_only=utf8_only
        )
        for _ in source:
            pass  # files are described when they have been read
        if source.describe() != opened.manifest["source"]:
            raise CheckpointError(
                f"the text is not the one that the run in {run.root} was started with: its "
                "checksum differs; leave it out, or start another run"
            )
    return opened
