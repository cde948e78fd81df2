"""Training a GPT on text, with checkpoints that outlive an interruption."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import asdict, dataclass, replace
from itertools import groupby, islice
from math import isfinite, nan
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from regard._files import require_writable
from regard.errors import Error
from regard.gpt.batches import batches, require_window
from regard.gpt.bpe import BPETokenizer
from regard.gpt.checkpoint import CheckpointError, holds_model, save
from regard.gpt.config import GPTConfig
from regard.gpt.corpus import python_texts, split_texts
from regard.gpt.generate import evaluating
from regard.gpt.model import GPT
from regard.gpt.schedule import learning_rate, window
from regard.gpt.tokenizer import CharTokenizer, Tokenizer
from regard.gpt.train_config import TrainConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor


# Validations of a large text would else take longer than the training between them.
_MEASURED = 65_536


class DivergedError(Error, ArithmeticError):
    """The loss is no longer a number."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Where a training run stands after an update.

    Attributes:
        step: updates done.
        loss: of the last batch, in nats a token, repeated random sequences included.
        validation_loss: in nats a token of held-out text, where it was measured at this step.
        tokens_per_second: tokens trained on, by the time spent, over the whole run.
    """

    step: int
    loss: float
    validation_loss: float | None
    tokens_per_second: float


@dataclass(frozen=True, kw_only=True)
class Training:
    """What `train` leaves: a model, and how it came to be.

    Attributes:
        model: the model, in evaluation mode.
        tokenizer: its tokenizer.
        interrupted: whether Ctrl-C ended it before its last step.
        record: what `training.json` holds.
    """

    model: GPT
    tokenizer: Tokenizer
    interrupted: bool
    record: dict[str, Any]


def train(
    folder: str | Path,
    *,
    texts: Sequence[str] | None = None,
    gpt: GPTConfig | None = None,
    config: TrainConfig | None = None,
    overwrite: bool = False,
    device: torch.device | str = "cpu",
    console: Console | None = None,
    watch: Callable[[Report], None] | None = None,
) -> Training:
    """Train a GPT from nothing and keep it in a folder.

    AdamW (Loshchilov and Hutter, 2019) with decay on weights of two dimensions, linear warm-up,
    a cosine down, and the gradient's norm clipped. The model is kept in `folder` after every
    validation, at the end, and where Ctrl-C ends the run after its first update.

    Args:
        folder: where the model is kept.
        texts: what to train on; None is `python_texts()`.
        gpt: the model's shape; None is the default shape. A tokenizer that finds fewer tokens in
            the text than its `vocab_size` makes the vocabulary smaller; a character tokenizer's
            vocabulary is the text's characters, whatever `vocab_size` says.
        config: how to train; None is the default recipe.
        overwrite: whether to replace a model that `folder` holds; it stays until the new one is
            kept for the first time.
        device: where to train.
        console: where progress is shown; None is standard error.
        watch: called after every update.

    Returns:
        The model with its tokenizer and its record. All randomness comes from `config.seed`;
        torch's global generators are left as they were.

    Raises:
        CheckpointError: `folder` already holds a model, and `overwrite` is False.
        CorpusError: there is no text.
        OSError: `folder` cannot be made, or no file in it; found out before training.
        ValueError: the context has no room for the repeated runs that `config` asks for.
        TooShortError: the text is too short for the context.
        DivergedError: a loss is no longer finite; the latest checkpoint stays.
        KeyboardInterrupt: Ctrl-C came before the first update; nothing is kept.
    """
    gpt, config = gpt or GPTConfig(), config or TrainConfig()
    if gpt.context < 2 and config.repeats > 0:
        raise ValueError(
            f"context is {gpt.context} and repeats {config.repeats}: a window of one token has no "
            "room for a repeated run; choose a context of at least 2, or repeats=0"
        )
    if holds_model(folder) and not overwrite:
        raise CheckpointError(
            f"{folder} already holds a model; train into another folder, or with overwrite=True"
        )
    texts = python_texts() if texts is None else texts
    training, validation = split_texts(texts, validation=config.validation, seed=config.seed)
    tokenizer = _make_tokenizer(training, validation, gpt.vocab_size, config.tokenizer)
    run = _Run(
        folder=Path(folder),
        gpt=replace(gpt, vocab_size=tokenizer.vocab_size),
        config=config,
        overwrite=overwrite,
        tokenizer=tokenizer,
        training=_encode(tokenizer, training),
        validation=_encode(tokenizer, validation)[:_MEASURED].to(device),
        device=torch.device(device),
        corpus=_describe(texts),
    )
    require_writable(run.folder)  # better now than after an hour
    accelerators = [] if run.device.type == "cpu" else [run.device]
    with torch.random.fork_rng(devices=accelerators, device_type=_accelerator(run.device)):
        torch.manual_seed(config.seed)
        return run.go(console or Console(stderr=True), watch)


def evaluate(model: GPT, tokens: Tensor, *, batch: int = 16) -> float:
    """The mean loss of a model on a text, in nats a token.

    The text is cut into windows of the model's context; every token but the first is predicted
    once, from those before it in its window.

    Args:
        model: the model; it runs in evaluation mode and is left as it was.
        tokens: ``(N,)`` ids on the model's device, at least two.
        batch: windows at a time.

    Raises:
        ValueError: `tokens` has fewer than two.
    """
    if len(tokens) < 2:
        raise ValueError(f"tokens holds {len(tokens)}; expected at least two, one to predict")
    context = model.config.context
    whole = (len(tokens) - 1) // context * context
    pieces = list(
        zip(
            tokens[:whole].view(-1, context).split(batch),
            tokens[1 : whole + 1].view(-1, context).split(batch),
            strict=True,
        )
    )
    if whole < len(tokens) - 1:
        pieces.append((tokens[whole:-1][None], tokens[whole + 1 :][None]))
    with evaluating(model):
        total = sum(_loss(model, ids, targets, reduction="sum").item() for ids, targets in pieces)
    return total / (len(tokens) - 1)


@dataclass(kw_only=True)
class _Run:
    """One training run: its data, fixed, and what changes from update to update."""

    folder: Path
    gpt: GPTConfig
    config: TrainConfig
    overwrite: bool
    tokenizer: Tokenizer
    training: Tensor  # (N,)
    validation: Tensor  # (M,)
    device: torch.device
    corpus: dict[str, Any]

    def __post_init__(self) -> None:
        self.step = 0
        self.tokens = 0
        self.seconds = 0.0
        self.history: list[dict[str, float]] = []
        require_window(self.training, self.gpt.context)

    def go(self, console: Console, watch: Callable[[Report], None] | None) -> Training:
        """Train to the end or to Ctrl-C."""
        self.model = GPT(self.gpt).to(self.device).train()
        optimizer = make_optimizer(self.model, self.config)
        interrupted = False
        with _progress(console) as progress:
            bar = progress.add_task("training", total=self.config.steps, loss=nan, speed=0.0)
            try:
                for report in self._updates(optimizer):
                    progress.update(
                        bar,
                        completed=report.step,
                        loss=report.loss,
                        speed=report.tokens_per_second,
                    )
                    if report.validation_loss is not None:
                        progress.console.print(_line(report))
                    if watch is not None:
                        watch(report)
            except KeyboardInterrupt:
                if self.step == 0:
                    raise
                interrupted = True
                self._save(interrupted=True)
                progress.console.print(f"stopped after {self.step} updates; kept in {self.folder}")
        return Training(
            model=self.model.eval(),
            tokenizer=self.tokenizer,
            interrupted=interrupted,
            record=self._record(interrupted=interrupted),
        )

    def _updates(self, optimizer: torch.optim.Optimizer) -> Iterator[Report]:
        config = self.config
        start = perf_counter()
        for drawn in self._batches():
            ids, targets = (tensor.to(self.device) for tensor in drawn)
            loss = self._update(optimizer, ids, targets)
            self.step += 1
            self.tokens += ids.numel()
            validation_loss = None
            if self.step % config.evaluate_every == 0 or self.step == config.steps:
                validation_loss = evaluate(self.model, self.validation, batch=config.batch)
                self._require_finite("validation loss", validation_loss, self.step)
                self.history.append(
                    {"step": self.step, "loss": loss, "validation_loss": validation_loss}
                )
            self.seconds = perf_counter() - start
            if validation_loss is not None:
                self._save(interrupted=False)
            yield Report(
                step=self.step,
                loss=loss,
                validation_loss=validation_loss,
                tokens_per_second=self.tokens / self.seconds,
            )

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """A batch for each update: all of the same number of tokens, in ever longer windows."""
        context = self.gpt.context
        generator = torch.Generator().manual_seed(self.config.seed)
        lengths = [window(step, context, self.config) for step in range(self.config.steps)]
        for length, steps in groupby(lengths):
            draws = batches(
                self.training,
                context=length,
                batch=self.config.batch * (context // length),
                vocab_size=self.gpt.vocab_size,
                repeats=self.config.repeats,
                generator=generator,
            )
            yield from islice(draws, len(list(steps)))

    def _update(self, optimizer: torch.optim.Optimizer, ids: Tensor, targets: Tensor) -> float:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(self.step, self.config)
        loss = _loss(self.model, ids, targets)
        value = loss.item()
        self._require_finite("loss", value, self.step + 1)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        optimizer.step()
        return value

    def _require_finite(self, name: str, value: float, update: int) -> None:
        if not isfinite(value):
            raise DivergedError(
                f"the {name} is {value} at update {update}; train with a lower learning_rate "
                f"than {self.config.learning_rate} or a longer warmup than {self.config.warmup}"
            )

    def _save(self, *, interrupted: bool) -> None:
        record = self._record(interrupted=interrupted)
        save(self.folder, self.model, self.tokenizer, training=record, overwrite=self.overwrite)

    def _record(self, *, interrupted: bool) -> dict[str, Any]:
        return {
            "step": self.step,
            "tokens": self.tokens,
            "seconds": round(self.seconds, 1),
            "interrupted": interrupted,
            "loss": self.history[-1]["loss"] if self.history else None,
            "validation_loss": self.history[-1]["validation_loss"] if self.history else None,
            "training_tokens": len(self.training),
            "validation_tokens": len(self.validation),
            "corpus": self.corpus,
            "config": asdict(self.config),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "history": self.history,
        }


def make_optimizer(model: GPT, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW that decays weights of two dimensions, and neither biases nor norms."""
    parameters = list(model.parameters())
    return torch.optim.AdamW(
        [
            {
                "params": [p for p in parameters if p.ndim >= 2],
                "weight_decay": config.weight_decay,
            },
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        fused=True,
    )


def _loss(model: GPT, ids: Tensor, targets: Tensor, *, reduction: str = "mean") -> Tensor:
    logits = model(ids)  # (B, T, V)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=reduction)


def _make_tokenizer(
    training: Sequence[str], validation: Sequence[str], vocab_size: int, kind: str
) -> Tokenizer:
    if kind == "char":  # a character that training never saw could not even be encoded
        return CharTokenizer("".join([*training, *validation]))
    return BPETokenizer.train(training, vocab_size=vocab_size)


def _encode(tokenizer: Tokenizer, texts: Sequence[str]) -> Tensor:
    return torch.tensor([i for text in texts for i in tokenizer.encode(text)])


def _describe(texts: Sequence[str]) -> dict[str, Any]:
    data = [text.encode(errors="surrogatepass") for text in texts]
    digest = hashlib.sha256(b"\0".join(data)).hexdigest()
    return {"texts": len(data), "bytes": sum(map(len, data)), "sha256": digest}


def _accelerator(device: torch.device) -> str:
    return "cuda" if device.type == "cpu" else device.type


def _line(report: Report) -> str:
    return (
        f"update {report.step}: validation loss {report.validation_loss:.4f}, "
        f"loss {report.loss:.4f}, {report.tokens_per_second:,.0f} tokens/s"
    )


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TextColumn("{task.fields[speed]:,.0f} tokens/s"),
        TimeRemainingColumn(),
        console=console,
    )
