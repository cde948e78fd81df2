"""The setup of a new training run: folder, text, batches and model."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version as regard_version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console

from regard._files import require_writable
from regard.gpt.config import GPTConfig
from regard.gpt.model import GPT
from regard.gpt.training.batches import Batches
from regard.gpt.training.checkpoints import CORPUS, FolderLock, TrainingRunFolder, lock_folder
from regard.gpt.training.config import TrainConfig
from regard.gpt.training.corpus import python_texts
from regard.gpt.training.hardware import bfloat16, compiling, this_machine
from regard.gpt.training.metrics import print_line
from regard.gpt.training.packed_corpus import Corpus, open_corpus
from regard.gpt.training.prepare import prepare
from regard.gpt.training.ranks import Ranks
from regard.gpt.training.result import TrainState


class TrainingArguments(NamedTuple):
    """The arguments of `regard.gpt.train`, which describes them."""

    root: Path
    texts: Sequence[str] | Path | None
    corpus: str | Path | Corpus | None
    utf8_only: bool
    gpt: GPTConfig | None
    config: TrainConfig | None
    device: torch.device
    console: Console


@dataclass(frozen=True, kw_only=True, eq=False)
class Setup:
    """The inputs of the training loop.

    Attributes:
        folder: the training run's.
        config: the recipe.
        corpus: the text, as tokens.
        corpus_origin: its fingerprint, and its path if it is outside the training run's folder.
        batches: the batch of every update.
        model: the whole model, on its device, in training mode.
        bfloat16: whether matrix products are computed in it.
        compile: whether to use `torch.compile`.
        state: the progress so far.
        resumes: whether to load the optimizer's state from the latest checkpoint.
    """

    folder: TrainingRunFolder
    config: TrainConfig
    corpus: Corpus
    corpus_origin: dict[str, Any]
    batches: Batches
    model: GPT
    bfloat16: bool
    compile: bool
    state: TrainState
    resumes: bool

    @property
    def device(self) -> torch.device:
        """The model's device."""
        return next(self.model.parameters()).device

    @property
    def document_end(self) -> int | None:
        """The token that ends a document, if attention is masked across documents; else None.

        Raises:
            ValueError: if the tokenizer has none.
        """
        if not self.config.document_mask:
            return None
        if self.corpus.tokenizer.end is None:
            raise ValueError(
                "TrainConfig.document_mask is True and the tokenizer has no token that ends a "
                "document; train with tokenizer='bpe', or without the mask"
            )
        return self.corpus.tokenizer.end


@contextmanager
def new_training_run(args: TrainingArguments, ranks: Ranks, lock: FolderLock) -> Iterator[Setup]:
    """Set up a training run; its folder is removed if the block fails before an update."""
    root = args.root
    existed, state = root.exists(), TrainState()
    folder: TrainingRunFolder | None = None
    try:
        with ranks.synchronized() as status:
            if ranks.is_main:
                require_writable(root)  # before hours of training
                lock_folder(lock, root)
                folder = TrainingRunFolder.new(root)
                status.own["run"] = folder.path.name
        folder = folder or TrainingRunFolder(root, status.all[0]["run"], None)
        ranks.require_shared(root)
        yield _setup(args, ranks, folder, state)
    except BaseException:
        if ranks.is_main and state.step == 0:
            if folder is not None:
                shutil.rmtree(folder.path, ignore_errors=True)
            if not existed:
                lock.release()
                with suppress(OSError):  # not empty, or never created
                    root.rmdir()
        raise


def _setup(
    args: TrainingArguments, ranks: Ranks, folder: TrainingRunFolder, state: TrainState
) -> Setup:
    gpt, config = args.gpt or GPTConfig(), args.config or TrainConfig()
    if gpt.context < 2 and config.repeats > 0:
        raise ValueError(
            f"context is {gpt.context} and repeats {config.repeats}: a window of one token has no "
            "room for a repeated span; choose a context of at least 2, or repeats=0"
        )
    if args.corpus is None:
        with ranks.synchronized(long=True):
            if ranks.is_main:
                prepare(
                    folder.path / CORPUS,
                    python_texts() if args.texts is None else args.texts,
                    tokenizer=config.tokenizer,
                    vocab_size=gpt.vocab_size,
                    validation=config.validation,
                    seed=config.seed,
                    utf8_only=args.utf8_only,
                    console=args.console,
                )
    with ranks.synchronized(long=True) as status:
        if args.corpus is None:
            corpus = open_corpus(folder.path / CORPUS, verify=not ranks.is_main)
        else:
            corpus = args.corpus if isinstance(args.corpus, Corpus) else open_corpus(args.corpus)
            config = _as_prepared(gpt, config, corpus)
        gpt = replace(gpt, vocab_size=corpus.tokenizer.vocab_size)
        batches = make_batches(corpus, gpt, config)
        torch.manual_seed(config.seed)
        model = GPT(gpt).to(args.device).train()
        machine = this_machine(args.device)
        decisions = {
            "bfloat16": bfloat16(config.precision, machine, dim=gpt.dim),
            "compile": compiling(config.compile, machine),
        }
        status.equal |= equal_facts(gpt, config, corpus)
        status.equal |= {name: decision.on for name, decision in decisions.items()}
    lines = [f"{ranks.size} processes"] if ranks.size > 1 else []
    for name, decision in decisions.items():
        lines.append(f"{name}: {'yes' if decision.on else 'no'}, {decision.reason}")
    sizes = f"{len(corpus.training):,} tokens to train on, {len(corpus.validation):,} held out"
    for line in (*lines, f"corpus: {sizes}"):
        print_line(args.console, line)
    path = None if args.corpus is None else str(corpus.folder.resolve())
    return Setup(
        folder=folder,
        config=config,
        corpus=corpus,
        corpus_origin={"path": path, "fingerprint": corpus.fingerprint},
        batches=batches,
        model=model,
        bfloat16=decisions["bfloat16"].on,
        compile=decisions["compile"].on,
        state=state,
        resumes=False,
    )


def make_batches(corpus: Corpus, gpt: GPTConfig, config: TrainConfig) -> Batches:
    """Return the batches of a training run."""
    return Batches(
        tokens=corpus.training,
        context=gpt.context,
        vocab_size=gpt.vocab_size,
        config=config,
        end=corpus.tokenizer.end,
    )


def equal_facts(gpt: GPTConfig, config: TrainConfig, corpus: Corpus) -> dict[str, Any]:
    """Return the values that must be equal on all ranks."""
    return {
        "the version of regard": regard_version("regard"),
        "the version of torch": str(torch.__version__),
        "the corpus": corpus.fingerprint,
        **{f"GPTConfig.{name}": value for name, value in asdict(gpt).items()},
        **{f"TrainConfig.{name}": value for name, value in asdict(config).items()},
    }


def _as_prepared(gpt: GPTConfig, config: TrainConfig, corpus: Corpus) -> TrainConfig:
    """Return the recipe with the fields that the corpus determines.

    Raises:
        ValueError: if the architecture or the recipe sets such a field to another value.
    """
    manifest = corpus.manifest
    fixed = {"validation": manifest["split"]["validation"]}
    if manifest["kind"] != "given":
        fixed["tokenizer"] = manifest["kind"]
    for name, value in fixed.items():
        if getattr(config, name) not in {value, getattr(TrainConfig(), name)}:
            raise _otherwise_prepared(config, name, corpus, repr(value))
    if manifest["kind"] != "char":  # else the vocabulary is the text's and `vocab_size` is ignored
        found = corpus.tokenizer.vocab_size
        asked_for = manifest.get("most_tokens", found)  # a BPE may find fewer
        if gpt.vocab_size not in {found, asked_for, GPTConfig().vocab_size}:
            fewer = "" if found == asked_for else f", of which it has {found}"
            raise _otherwise_prepared(gpt, "vocab_size", corpus, f"{asked_for}{fewer}")
    return replace(config, **fixed)


def _otherwise_prepared(
    config: GPTConfig | TrainConfig, name: str, corpus: Corpus, with_what: str
) -> ValueError:
    return ValueError(
        f"{type(config).__name__}.{name} is {getattr(config, name)!r} and the corpus in "
        f"{corpus.folder} was prepared with {with_what}; leave it out, or prepare the corpus anew"
    )
