"""The training loop: batch, update, report, and now and then a validation and a checkpoint."""

from __future__ import annotations

import platform
import signal
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from math import isfinite, log
from typing import TYPE_CHECKING, Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from regard.gpt.checkpoint import load
from regard.gpt.errors import DivergedError
from regard.gpt.training._evaluate import mean_loss
from regard.gpt.training._optimizer_shards import keep_together
from regard.gpt.training.metrics import Metrics
from regard.gpt.training.schedule import learning_rate
from regard.gpt.training.stop import SIGNALS, Terminated, between_updates
from regard.gpt.training.update import diverged, optimizer_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console
    from torch import Tensor

    from regard.gpt.model import GPT
    from regard.gpt.tokenizer import Tokenizer
    from regard.gpt.training.batches import Batch, Batches
    from regard.gpt.training.checkpoints import RunFolder
    from regard.gpt.training.config import TrainConfig
    from regard.gpt.training.metrics import Callback, MetricsFile, Rates
    from regard.gpt.training.packed_corpus import Corpus
    from regard.gpt.training.ranks import Ranks
    from regard.gpt.training.stop import Stop
    from regard.gpt.training.update import Updates


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """What `train` leaves: a model, and how it came to be.

    Attributes:
        model: the model, in evaluation mode.
        tokenizer: its tokenizer.
        signal: what ended it before its last step: SIGINT, which Ctrl-C sends, or SIGTERM; None
            where it came to its end.
        record: what `training.json` holds.
    """

    model: GPT
    tokenizer: Tokenizer
    signal: signal.Signals | None
    record: dict[str, Any]

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C or SIGTERM ended it before its last step."""
        return self.signal is not None


@dataclass
class TrainState:
    """How far a run has come: what changes from update to update, beside model and optimizer."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)


@dataclass(kw_only=True)
class Loop:
    """A run: its parts, fixed, and how far it has come."""

    ranks: Ranks
    folder: RunFolder
    config: TrainConfig
    corpus: Corpus
    batches: Batches
    validation: Tensor  # (M,)
    updates: Updates
    rates: Rates
    recorder: Callable[[int, GPT], object] | None
    fixed: dict[str, Any]
    """What a checkpoint's state tells of the run as a whole."""
    at: TrainState
    metrics: MetricsFile | None = None
    """Of rank 0, while it trains."""
    failure: Exception | None = None
    """What this rank has failed at, and the others do not know of yet."""

    @property
    def model(self) -> GPT:
        """The model."""
        return self.updates.spread.model

    def go(self, console: Console, callbacks: Sequence[Callback]) -> TrainResult:
        """Train to the end, or to a signal to stop."""
        ended_by = None
        with _bar(console) as bar, between_updates() as stop:
            task = bar.add_task(
                "training", total=self.config.steps, completed=self.at.step, measured=""
            )
            try:
                while self.at.step < self.config.steps:
                    stop.here(self._together(stop.asked))
                    report = self._advance()
                    bar.update(
                        task,
                        completed=report.step,
                        measured=f"loss {report.loss:.3f} {report.tokens_per_second:,.0f} tokens/s",
                    )
                    if report.validation_loss is not None:
                        say(bar.console, _line(report))
                    with self._alone(stop):
                        for callback in callbacks:
                            callback(report)
                self._together()
            except KeyboardInterrupt as asked:
                if self.at.step == 0 or stop.at_once:
                    raise
                ended_by = signal.SIGTERM if isinstance(asked, Terminated) else signal.SIGINT
                self._save(interrupted=True)
                say(
                    bar.console, f"stopped after {self.at.step} updates; kept in {self.folder.root}"
                )
        model = self.model.eval()
        if self.updates.spread.splits:  # whoever trained it wants all of it
            model, _ = load(self.folder.checkpoint(self.at.step), device=self.validation.device)
        return TrainResult(
            model=model,
            tokenizer=self.corpus.tokenizer,
            signal=ended_by,
            record=self.record(interrupted=ended_by is not None),
        )

    def _advance(self) -> Metrics:
        """Make an update, and what is due after it.

        The report is written before the checkpoint: a run that is cut off in between goes on from
        the checkpoint before, and drops the lines that came after that.
        """
        step, at = self.at.step, self.at
        batch = self.batches.batch(step)
        with self._telling_what_stays():
            loss, norm = self.updates(step, batch)
        at.step += 1
        at.tokens += batch.ids.numel()
        rates = self.rates.measure(at.step, batch.ids.numel(), batch.ids.shape[1])
        due = at.step % self.config.evaluate_every == 0 or at.step == self.config.steps
        validation_loss = self._validate(loss, batch) if due else None
        report = Metrics(
            step=at.step,
            steps=self.config.steps,
            loss=loss,
            gradient_norm=norm,
            learning_rate=learning_rate(step, self.config),
            tokens=at.tokens,
            validation_loss=validation_loss,
            bits_per_byte=self._bits(validation_loss),
            checkpoint=self.folder.checkpoint(at.step) if due else None,
            model=self.model,
            **rates,
        )
        with self._alone(), self.folder.telling(f"what is told of update {at.step}"):
            if self.recorder is not None and at.step % self.config.record_every == 0:
                self.recorder(at.step, self.model)
            if self.metrics is not None:
                self.metrics(report)
        at.seconds = self.rates.seconds
        if due:
            self._together()
            self._save(interrupted=False)
        self.rates.pass_over()
        return report

    @contextmanager
    def _alone(self, stop: Stop | None = None) -> Iterator[None]:
        """Do what a rank may fail at, or be stopped in, while the others do not."""
        try:
            yield
        except KeyboardInterrupt:
            if stop is None or stop.at_once or self.ranks.size == 1:
                raise
            stop.asked = signal.SIGINT
        except Exception as error:
            if self.ranks.size == 1:
                raise
            self.failure = error

    def _together(self, asked: signal.Signals | None = None) -> signal.Signals | None:
        """The signal to stop that any rank has: all of them learn it after the same update.

        Raises:
            Exception: what a rank failed at alone, on that rank.
            DistributedError: the same, on the others.
        """
        *stopped, failed = self.ranks.any(
            *(asked == number for number in SIGNALS),
            self.failure is not None,
            device=self.validation.device,
        )
        if failed:
            with self.ranks.agreeing():
                if self.failure is not None:
                    raise self.failure
        return next((number for number, came in zip(SIGNALS, stopped, strict=True) if came), None)

    def _validate(self, loss: float, batch: Batch) -> float:
        found = mean_loss(
            self.model,
            self.validation,
            batch=self.config.batch,
            end=self.updates.end,
            ranks=self.ranks if self.ranks.size > 1 else None,
        )
        if not isfinite(found):
            with self._telling_what_stays():
                raise diverged("validation loss", found, self.at.step, batch)
        entry = {"step": self.at.step, "loss": loss, "validation_loss": found}
        self.at.history.append(entry)
        return found

    @contextmanager
    def _telling_what_stays(self) -> Iterator[None]:
        """Say of a loss that is no number what is left, and what to do."""
        try:
            yield
        except DivergedError as error:
            raise DivergedError(
                f"{error}; {self.folder.kept()}; train anew with a lower learning_rate than "
                f"{self.config.learning_rate} or a longer warmup than {self.config.warmup}",
                step=error.step,
                starts=error.starts,
            ) from None

    def _bits(self, loss: float | None) -> float | None:
        """Nats a token in bits a byte."""
        return None if loss is None else loss / log(2) / self.corpus.bytes_per_token

    def _save(self, *, interrupted: bool) -> None:
        self.updates.spread.settle()
        keep_together(
            self.ranks,
            self.folder,
            self.at.step,
            self.updates.spread,
            self.corpus.tokenizer,
            optimizer_state(self.model, self.updates.optimizer),
            state={**self.fixed, "progress": asdict(self.at)},
            record=self.record(interrupted=interrupted),
            keep_every=self.config.keep_every,
        )

    def record(self, *, interrupted: bool) -> dict[str, Any]:
        """What `training.json` says."""
        at, manifest = self.at, self.corpus.manifest
        last = at.history[-1] if at.history else {"loss": None, "validation_loss": None}
        return {
            "step": at.step,
            "tokens": at.tokens,
            "seconds": round(at.seconds, 1),
            "interrupted": interrupted,
            "loss": last["loss"],
            "validation_loss": last["validation_loss"],
            "bits_per_byte": self._bits(last["validation_loss"]),
            "training_tokens": len(self.corpus.training),
            "validation_tokens": len(self.corpus.validation),
            "corpus": manifest["source"],
            "config": asdict(self.config),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "history": at.history,
        }


def say(console: Console, line: str) -> None:
    """Print a line as it is, however long."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _line(report: Metrics) -> str:
    assert report.validation_loss is not None
    peak = "" if report.share_of_peak is None else f", {report.share_of_peak:.0%} of the peak"
    size = "" if report.memory is None else f", {report.memory / 1e9:.1f} GB"
    return (
        f"update {report.step}: validation loss {report.validation_loss:.4f} "
        f"(perplexity {report.validation_perplexity:.2f}, {report.bits_per_byte:.3f} bits/byte), "
        f"loss {report.loss:.4f}, {report.tokens_per_second:,.0f} tokens/s{peak}{size}"
    )


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[measured]}"),
        TimeRemainingColumn(),
        console=console,
    )
