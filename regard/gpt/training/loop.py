"""The training loop, from top to bottom.

Data, model, optimizer; then for every update: batch, loss, gradient, step, metrics, and at
intervals a validation and a checkpoint.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any, cast

import torch
from rich.console import Console
from torch import Tensor

from regard.gpt.training.batches import Batch
from regard.gpt.training.callbacks import Callback, Observers, UpdateObserver
from regard.gpt.training.checkpoints import METRICS, OPTIMIZER
from regard.gpt.training.evaluate import mean_loss
from regard.gpt.training.history import heads_recorder
from regard.gpt.training.metrics import (
    Metrics,
    MetricsFile,
    ProgressBar,
    Timer,
    print_line,
    validation_line,
)
from regard.gpt.training.optimizer import (
    make_optimizer,
    optimizer_state,
    restore_optimizer,
)
from regard.gpt.training.parallel import parallelize
from regard.gpt.training.ranks import Ranks
from regard.gpt.training.result import TrainResult, bits_per_byte, training_record
from regard.gpt.training.schedule import learning_rate
from regard.gpt.training.setup import Setup
from regard.gpt.training.signals import SIGNALS, StopSignal, Terminated, deferred_signals, interrupt
from regard.gpt.training.train_step import TrainStep, diverged, divergence_advice, require_finite

_VALIDATED = 65_536  # maximum tokens; validation on a large text would take longer than training


@dataclass(frozen=True)
class Unread:
    """An update, counted from 1, whose loss and gradient norm have not been read.

    `tokens` are those trained on up to its end.
    """

    step: int
    tokens: int
    batch: Batch
    outcome: Tensor


class Loop:
    """A training run and its progress.

    Args:
        setup: model, corpus and recipe.
        ranks: the processes that train together.
    """

    def __init__(self, setup: Setup, ranks: Ranks) -> None:
        self.setup, self.ranks = setup, ranks
        self.folder, self.config, self.state = setup.folder, setup.config, setup.state
        config, corpus, device = self.config, setup.corpus, setup.device

        # Data: a batch for every update, and the start of the held-out text.
        self.batches = setup.batches
        self.validation = torch.from_numpy(corpus.validation[:_VALIDATED].astype("int64"))
        self.validation = self.validation.to(device)  # (M,)
        self.end = setup.document_end

        # Model: in one process, or copied to all ranks (DDP).
        parameters = sum(p.numel() for n, p in setup.model.named_parameters() if n != "wpe.weight")
        self.parallel = parallelize(setup.model, ranks)
        self.model, loss = self.parallel.model, self.parallel.loss
        if setup.compile:
            loss = cast("torch.nn.Module", torch.compile(loss))

        # Optimizer: its learning rate is set at every update.
        optimizer = make_optimizer(self.model, config)
        if setup.resumes:
            with ranks.synchronized():
                path = self.folder.checkpoint(self.state.step) / OPTIMIZER
                restore_optimizer(self.model, optimizer, config, path)
        self.train_step = TrainStep(
            parallel=self.parallel,
            ranks=ranks,
            optimizer=optimizer,
            config=config,
            bfloat16=setup.bfloat16,
            end=self.end,
            loss=loss,
        )

        # Measurements: speed, the roles of heads, and a line of metrics per update.
        self.timer = Timer(
            self.model.config,
            parameters,
            device,
            bfloat16=setup.bfloat16,
            ranks=ranks.size,
            steps=config.steps,
            step=self.state.step,
            seconds=self.state.seconds,
        )
        self.record_heads = heads_recorder(
            ranks, self.folder, corpus, self.model, config, self.state.step
        )
        self.metrics_file: MetricsFile | None = None  # rank 0's, while it trains
        self.unread: list[Unread] = []  # updates whose loss has not been read from the GPU
        self.failure: Exception | None = None  # of this rank, until it is exchanged

    def run(self, console: Console, callbacks: Sequence[Callback | UpdateObserver]) -> TrainResult:
        """Train until the last update, or until a signal to stop."""
        observers = Observers(callbacks)
        state, ended_by = self.state, None
        with (
            self._open_metrics(),
            ProgressBar(console, self.config.steps, state.step) as bar,
            deferred_signals() as stop,
        ):
            try:
                while state.step < self.config.steps:
                    interrupt(self._synchronize(stop.received))
                    metrics = self._update(observers)
                    for each in metrics:
                        bar.show(each)
                        if each.validation_loss is not None:
                            print_line(bar.console, validation_line(each))
                    with self._failing_later(stop):
                        observers.raise_error()
                        for each in metrics:
                            for callback in filter(callable, callbacks):
                                callback(each)
                self._synchronize()
            except KeyboardInterrupt as error:
                if state.step == 0 or stop.repeated:
                    raise
                ended_by = signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT
                self._save(interrupted=True)
                print_line(
                    bar.console,
                    f"stopped after {state.step} updates; saved in {self.folder.root}",
                )
        return TrainResult(
            model=self.model.eval(),
            tokenizer=self.setup.corpus.tokenizer,
            signal=ended_by,
            record=self.record(interrupted=ended_by is not None),
        )

    def _update(self, observers: Observers) -> list[Metrics]:
        """Make one update, and validate and write a checkpoint if they are due.

        Metrics are written before the checkpoint: a training run interrupted in between resumes
        from the previous checkpoint, and drops the later lines.

        Returns:
            The metrics of the updates whose losses were read: of this one or, on a GPU, of
            `log_every` of them at once, to synchronize less often.
        """
        state, config = self.state, self.config
        batch = self.batches.batch(state.step)
        with divergence_advice(self.folder, config), observers.update(state.step):
            outcome = self.train_step(state.step, batch)
        state.step += 1
        state.tokens += batch.ids.numel()
        self.unread.append(Unread(state.step, state.tokens, batch, outcome))
        is_due = state.step % config.evaluate_every == 0 or state.step == config.steps
        is_read = is_due or not outcome.is_cuda or state.step % config.log_every == 0
        metrics = self._read(validate=is_due) if is_read else []
        with self._failing_later(), self.folder.save_errors(f"the metrics of update {state.step}"):
            if self.record_heads is not None and state.step % config.record_every == 0:
                self.record_heads(state.step, self.model)
        if is_due:
            self._synchronize()
            self._save(interrupted=False)
        if is_read:
            self.timer.restart()
        return metrics

    def _read(self, *, validate: bool = False) -> list[Metrics]:
        """Read the losses that are still on the device, and write the metrics of their updates.

        Args:
            validate: whether the last of these updates is validated, and gets a checkpoint.

        Raises:
            DivergedError: one of the losses is not finite.
        """
        unread = self.unread
        if not unread:
            return []
        numbers = torch.stack([update.outcome for update in unread]).tolist()  # one read
        last, validation_loss = unread[-1], None
        with divergence_advice(self.folder, self.config):
            for update, (loss, norm) in zip(unread, numbers, strict=True):
                require_finite(loss, norm, update.step, update.batch)
            tokens = sum(update.batch.ids.numel() for update in unread)
            speed = self.timer.measure(last.step, tokens, last.batch.ids.shape[1])
            if validate:
                validation_loss = self._validate(numbers[-1][0], last.batch)
        validated = [None] * (len(unread) - 1) + [validation_loss]
        metrics = [
            self._metrics(update, loss, norm, loss_of_held_out, speed)
            for update, (loss, norm), loss_of_held_out in zip(
                unread, numbers, validated, strict=True
            )
        ]
        self.unread = []  # only now: if validation is interrupted, `_save` writes their lines
        with self._failing_later(), self.folder.save_errors(f"the metrics of update {last.step}"):
            if self.metrics_file is not None:
                for each in metrics:
                    self.metrics_file(each)
        self.state.seconds = self.timer.seconds
        return metrics

    def _metrics(
        self,
        update: Unread,
        loss: float,
        norm: float,
        validation_loss: float | None,
        speed: Mapping[str, Any],
    ) -> Metrics:
        due = validation_loss is not None
        return Metrics(
            step=update.step,
            steps=self.config.steps,
            loss=loss,
            gradient_norm=norm,
            learning_rate=learning_rate(update.step - 1, self.config),
            tokens=update.tokens,
            validation_loss=validation_loss,
            bits_per_byte=bits_per_byte(validation_loss, self.setup.corpus),
            checkpoint=self.folder.checkpoint(update.step) if due else None,
            model=self.model,
            **speed,
        )

    def _validate(self, loss: float, batch: Batch) -> float:
        validation_loss = mean_loss(
            self.model, self.validation, batch=self.config.batch, end=self.end, ranks=self.ranks
        )
        if not isfinite(validation_loss):
            raise diverged("validation loss", validation_loss, self.state.step, batch)
        entry = {"step": self.state.step, "loss": loss, "validation_loss": validation_loss}
        self.state.history.append(entry)
        return validation_loss

    def _save(self, *, interrupted: bool) -> None:
        self._read()  # raises an error if an interrupted training run diverged
        setup = self.setup
        with self.ranks.synchronized():
            if self.ranks.is_main:
                self.folder.save(
                    self.state.step,
                    self.model,
                    setup.corpus.tokenizer,
                    optimizer_state(self.model, self.train_step.optimizer),
                    state={
                        "gpt": asdict(self.model.config),
                        "config": asdict(self.config),
                        "computed": {"bfloat16": setup.bfloat16, "compile": setup.compile},
                        "corpus": setup.corpus_origin,
                        "progress": asdict(self.state),
                    },
                    record=self.record(interrupted=interrupted),
                    keep_every=self.config.keep_every,
                )
        self.folder.step = self.state.step

    def finish_save(self) -> None:
        """Complete the latest checkpoint, if its writing was interrupted."""
        with self.ranks.synchronized():
            if self.ranks.is_main:
                self.folder.finish_save(self.record(interrupted=False), self.config.keep_every)

    def record(self, *, interrupted: bool) -> dict[str, Any]:
        """Return the content of `training.json`."""
        return training_record(self.state, self.setup.corpus, self.config, interrupted=interrupted)

    @contextmanager
    def _open_metrics(self) -> Iterator[None]:
        if not self.ranks.is_main:
            yield
            return
        with MetricsFile(self.folder.path / METRICS, self.state.step) as self.metrics_file:
            yield

    @contextmanager
    def _failing_later(self, stop: StopSignal | None = None) -> Iterator[None]:
        """Defer an error or a signal of this rank until `_synchronize`, where all ranks meet."""
        try:
            yield
        except KeyboardInterrupt:
            if stop is None or stop.repeated or self.ranks.size == 1:
                raise
            stop.received = signal.SIGINT
        except Exception as error:
            if self.ranks.size == 1:
                raise
            self.failure = error

    def _synchronize(self, received: signal.Signals | None = None) -> signal.Signals | None:
        """Return the signal that any rank received, on all ranks after the same update.

        Raises:
            Exception: the failure of this rank.
            Error: another rank failed.
        """
        *stopped, failed = self.ranks.any(
            *(received == number for number in SIGNALS),
            self.failure is not None,
            device=self.setup.device,
        )
        if failed:
            with self.ranks.synchronized():
                if self.failure is not None:
                    raise self.failure
        return next((number for number, came in zip(SIGNALS, stopped, strict=True) if came), None)
