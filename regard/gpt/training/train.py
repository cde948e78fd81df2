"""Training a GPT on text, with checkpoints from which an interrupted training run resumes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from regard.gpt.checkpoint import require_no_model
from regard.gpt.config import GPTConfig
from regard.gpt.training.callbacks import Callback, UpdateObserver
from regard.gpt.training.checkpoints import LOCK, FolderLock
from regard.gpt.training.config import TrainConfig
from regard.gpt.training.corpus import require_texts
from regard.gpt.training.loop import Loop
from regard.gpt.training.metrics import print_line
from regard.gpt.training.packed_corpus import Corpus
from regard.gpt.training.ranks import Ranks
from regard.gpt.training.result import TrainResult
from regard.gpt.training.resume import resumed_training_run
from regard.gpt.training.setup import TrainingArguments, new_training_run


def train(
    folder: str | Path,
    *,
    texts: Sequence[str] | Path | None = None,
    corpus: str | Path | Corpus | None = None,
    gpt: GPTConfig | None = None,
    config: TrainConfig | None = None,
    resume: bool = False,
    overwrite: bool = False,
    utf8_only: bool = False,
    device: torch.device | str = "cpu",
    console: Console | None = None,
    callbacks: Sequence[Callback | UpdateObserver] = (),
) -> TrainResult:
    """Train a GPT from random weights into a folder, or resume an interrupted training run.

    AdamW (Loshchilov and Hutter, 2019) with decay on weights of two dimensions, linear warm-up,
    a learning rate that falls, and the gradient's norm clipped. After every validation, at the end,
    and where Ctrl-C or SIGTERM ends the training run after its first update, `folder` gets the
    model and a checkpoint. A resumed training run computes what it would have computed without the
    interruption, to the last bit, on the same machine with the same number of threads.

    In a process group of `torch.distributed`, all ranks train together: each calls this with the
    same arguments, and computes its part of every batch, whose size is that of `config`. The
    gradient is that of one process, to rounding; each rank draws its own dropout. `folder` has to
    be one that all share. Rank 0 alone prepares the corpus, writes metrics, and
    shows progress. A checkpoint can be resumed by any number of ranks.

    Args:
        folder: the folder of the model and, beside it, `run`: metrics, checkpoints, the corpus.
        texts: the texts to train on, or the path of a UTF-8 file or a folder of them, each a
            document, which is read in pieces; None is `python_texts()`.
        corpus: in their place, a corpus of `prepare`. The `tokenizer` and `validation` of `config`
            and the `vocab_size` of `gpt` are then the corpus's.
        gpt: the model's shape; None is the default shape. A tokenizer that finds fewer tokens in
            the text than its `vocab_size` makes the vocabulary smaller; a character tokenizer's
            vocabulary is the text's characters, whatever `vocab_size` is.
        config: how to train; None is the default recipe.
        resume: whether to resume from the latest checkpoint in `folder`. Where `gpt` and `config`
            are None they are the training run's; otherwise they may differ in `evaluate_every`,
            in `keep_every`, and in `steps` as long as the updates that were made would have been
            the same. `texts` have to be those of the training run, or None.
        overwrite: whether to replace a model in `folder`; it stays until the first checkpoint of
            the new one.
        utf8_only: whether to skip files that are not UTF-8 text, as `prepare` does.
        device: where to train.
        console: where progress is shown; None is standard error.
        callbacks: called with a `Metrics` after every update, in order; of several ranks, on each.
            On a GPU they come once in `config.log_every` updates, to synchronize seldom.
            In the context of one that has `update(number)`, as a `regard.Monitor` has, each update
            is made; what leaving it raises comes where callbacks are called.

    Returns:
        The model with its tokenizer and its record. All randomness comes from `config.seed`;
        torch's global generators are left unchanged.

    Raises:
        CheckpointError: `folder` holds a model, or a file that one would replace, and `overwrite`
            and `resume` are False; or it holds no checkpoint to resume from, a damaged one, or a
            training run with another recipe or text; or another process trains in it.
        Error: there is no text, or too little for the context; or the corpus is damaged.
        OSError: `folder` or a file in it cannot be made; raised before training.
        SaveError: a checkpoint could not be written, such as on a full disk; the one before stays.
        TypeError: `texts` is a str, or one of them is not.
        ValueError: the context has no room for the repeated spans that `config` asks for, or
            arguments exclude each other, or differ between ranks; or a text holds a lone surrogate,
            which UTF-8 cannot express; or `gpt` or `config` set what `corpus` determines to
            something else.
        DivergedError: a loss or a gradient is NaN or infinite; the latest checkpoint stays.
        Error: another rank failed, or is lost; the latest checkpoint stays.
        KeyboardInterrupt: Ctrl-C or SIGTERM came before the first update, or twice; no checkpoint
            is written.

    Example:
        >>> import io, tempfile
        >>> from rich.console import Console
        >>> from regard.gpt import GPTConfig, TrainConfig, train
        >>> gpt = GPTConfig(layers=1, heads=1, dim=4, context=8)
        >>> config = TrainConfig(tokenizer="char", steps=2)
        >>> quiet = Console(file=io.StringIO())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = train(folder, texts=["abc " * 200], gpt=gpt, config=config, console=quiet)
        >>> result.model.config.vocab_size, result.record["step"]
        (4, 2)
    """
    if texts is not None and corpus is not None:
        raise ValueError("texts and corpus exclude each other; leave out one of them")
    if resume and overwrite:
        raise ValueError("resume and overwrite exclude each other; leave out one of them")
    if texts is not None:
        require_texts(texts)
    root, device = Path(folder), torch.device(device)
    # torch names the generators of other devices than the CPU, whose state is always kept.
    kind, devices = ("cuda", []) if device.type == "cpu" else (device.type, [device])
    with (
        Ranks() as ranks,
        ranks.report_lost_rank(),
        FolderLock(root / LOCK) as lock,
        torch.random.fork_rng(devices, device_type=kind),
    ):
        console = Console(quiet=True) if not ranks.is_main else console or Console(stderr=True)
        args = TrainingArguments(root, texts, corpus, utf8_only, gpt, config, device, console)
        if resume:
            setup = resumed_training_run(args, ranks, lock)
            loop = Loop(setup, ranks)
            loop.finish_save()
            print_line(console, f"{root}: going on after update {setup.state.step}")
            return loop.run(console, callbacks)
        if not overwrite:
            require_no_model(root, corpus.folder if isinstance(corpus, Corpus) else corpus)
        with new_training_run(args, ranks, lock) as setup:
            return Loop(setup, ranks).run(console, callbacks)
