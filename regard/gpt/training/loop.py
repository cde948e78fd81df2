"""The training loop, from top to bottom.

Data, model, optimizer; then for every update: batch, loss, gradient, step, metrics, and now and
then a validation and a checkpoint.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any, cast

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor

from regard.gpt.checkpoint import load
from regard.gpt.training._console import ProgressBar, print_line, validation_line
from regard.gpt.training._optimizer_shards import read_optimizer, save_checkpoint
from regard.gpt.training._permutation import mix
from regard.gpt.training.batches import Batch, document_mask
from regard.gpt.training.checkpoints import METRICS
from regard.gpt.training.config import TrainConfig
from regard.gpt.training.divergence import diverged, divergence_advice
from regard.gpt.training.evaluate import mean_loss
from regard.gpt.training.history import heads_recorder
from regard.gpt.training.metrics import Callback, Metrics, MetricsFile, Timer
from regard.gpt.training.observers import Observers, UpdateObserver
from regard.gpt.training.optimizer import (
    Optimizers,
    make_optimizer,
    optimizer_state,
    restore_optimizer,
)
from regard.gpt.training.parallel import SingleProcess, parallelize
from regard.gpt.training.ranks import Ranks
from regard.gpt.training.result import TrainResult, bits_per_byte, training_record
from regard.gpt.training.schedule import learning_rate
from regard.gpt.training.setup import Setup
from regard.gpt.training.signals import SIGNALS, StopSignal, Terminated, deferred_signals, interrupt

_VALIDATED = 65_536  # tokens; validating on all of a large text would take longer than training


class Loop:
    """A training run and its progress.

    Args:
        setup: what is trained, on which text and how.
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

        # Model: in one process, copied to all ranks (DDP), or sharded over them (FSDP).
        parameters = sum(p.numel() for n, p in setup.model.named_parameters() if n != "wpe.weight")
        self.parallel = parallelize(setup.model, ranks, config.parallel)
        self.model, forward = self.parallel.model, self.parallel.module
        if setup.compile:
            forward = cast("torch.nn.Module", torch.compile(forward))

        # Optimizer: its learning rate is set at every update.
        optimizer = make_optimizer(self.model, config)
        if setup.shards is not None:
            with ranks.synchronized():
                path = self.folder.checkpoint(self.state.step)
                state = read_optimizer(path, self.model, config, setup.shards, ranks)
                restore_optimizer(self.model, optimizer, config, state)
        self.train_step = TrainStep(
            parallel=self.parallel,
            ranks=ranks,
            optimizer=optimizer,
            config=config,
            bfloat16=setup.bfloat16,
            end=self.end,
            forward=forward,
        )

        # Measurements: speed, what the heads do, and a line of metrics an update.
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
        self.failure: Exception | None = None  # this rank's, until the others know of it

    def run(self, console: Console, callbacks: Sequence[Callback | UpdateObserver]) -> TrainResult:
        """Train until the last update, or until a signal to stop."""
        observers = Observers(callbacks)
        state, ended_by = self.state, None
        with (
            self._open_metrics(console),
            ProgressBar(console, self.config.steps, state.step) as bar,
            deferred_signals() as stop,
        ):
            try:
                while state.step < self.config.steps:
                    interrupt(self._synchronize(stop.received))
                    metrics = self._update(observers)
                    bar.show(metrics)
                    if metrics.validation_loss is not None:
                        print_line(bar.console, validation_line(metrics))
                    with self._failing_later(stop):
                        observers.raise_error()
                        for callback in callbacks:
                            if callable(callback):
                                callback(metrics)
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
        model = self.model.eval()
        if self.parallel.is_sharded:  # the caller wants all of it
            model, _ = load(self.folder.checkpoint(state.step), device=self.setup.device)
        return TrainResult(
            model=model,
            tokenizer=self.setup.corpus.tokenizer,
            signal=ended_by,
            record=self.record(interrupted=ended_by is not None),
        )

    def _update(self, observers: Observers) -> Metrics:
        """Make one update, and validate and write a checkpoint where they are due.

        Metrics are written before the checkpoint: a training run that is cut off in between resumes
        from the checkpoint before, and drops the lines that came after that.
        """
        step, state, config = self.state.step, self.state, self.config
        batch = self.batches.batch(step)
        with divergence_advice(self.folder, config):
            with observers.update(step):
                loss, norm = self.train_step(step, batch)
            state.step += 1
            state.tokens += batch.ids.numel()
            speed = self.timer.measure(state.step, batch.ids.numel(), batch.ids.shape[1])
            is_due = state.step % config.evaluate_every == 0 or state.step == config.steps
            validation_loss = self._validate(loss, batch) if is_due else None
        metrics = Metrics(
            step=state.step,
            steps=config.steps,
            loss=loss,
            gradient_norm=norm,
            learning_rate=learning_rate(step, config),
            tokens=state.tokens,
            validation_loss=validation_loss,
            bits_per_byte=bits_per_byte(validation_loss, self.setup.corpus),
            checkpoint=self.folder.checkpoint(state.step) if is_due else None,
            model=self.model,
            **speed,
        )
        with self._failing_later(), self.folder.save_errors(f"the metrics of update {state.step}"):
            if self.record_heads is not None and state.step % config.record_every == 0:
                self.record_heads(state.step, self.model)
            if self.metrics_file is not None:
                self.metrics_file(metrics)
        state.seconds = self.timer.seconds
        if is_due:
            self._synchronize()
            self._save(interrupted=False)
        self.timer.restart()
        return metrics

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
        self.parallel.reshard()
        setup = self.setup
        save_checkpoint(
            self.ranks,
            self.folder,
            self.state.step,
            self.parallel,
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

    def finish_save(self) -> None:
        """Complete the latest checkpoint, if an interruption came while it was written."""
        with self.ranks.synchronized():
            if self.ranks.is_main:
                self.folder.finish_save(self.record(interrupted=False), self.config.keep_every)

    def record(self, *, interrupted: bool) -> dict[str, Any]:
        """The content of `training.json`."""
        return training_record(self.state, self.setup.corpus, self.config, interrupted=interrupted)

    @contextmanager
    def _open_metrics(self, console: Console) -> Iterator[None]:
        if not self.ranks.is_main:
            yield
            return
        path, step = self.folder.path / METRICS, self.state.step
        with MetricsFile(path, step) as self.metrics_file:
            if self.metrics_file.lost:
                print_line(
                    console,
                    f"{path}: of {step} lines, {self.metrics_file.lost} are damaged or missing and "
                    "were left out; the trained model does not depend on them",
                )
            yield

    @contextmanager
    def _failing_later(self, stop: StopSignal | None = None) -> Iterator[None]:
        """Keep what only this rank fails at, or is stopped by, until `_synchronize`."""
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
        """The signal that any rank received; all ranks get it after the same update.

        Raises:
            Exception: the failure of this rank.
            DistributedError: another rank failed.
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


@dataclass(kw_only=True)
class TrainStep:
    """One update: loss, gradient, step.

    Attributes:
        parallel: the model, and how ranks share it.
        ranks: the ranks, which share the rows of a batch.
        optimizer: of the model's parameters.
        config: the recipe.
        bfloat16: whether matrix products are computed in it.
        end: the token that ends a document, where attention is to stay within one.
        forward: the model's forward pass, compiled or as it is.
    """

    parallel: SingleProcess
    ranks: Ranks
    optimizer: Optimizers
    config: TrainConfig
    bfloat16: bool
    end: int | None
    forward: Callable[..., Tensor]
    _parameters: list[torch.nn.Parameter] = field(init=False)

    def __post_init__(self) -> None:
        self._parameters = list(self.parallel.model.parameters())
        self._device = self._parameters[0].device

    def __call__(self, step: int, batch: Batch) -> tuple[float, float]:
        """Make an update; each rank computes its part of the rows.

        Args:
            step: its number, from 0.
            batch: all of its rows.

        Returns:
            The loss, in nats a token, and the gradient's norm before clipping, both of all rows.

        Raises:
            DivergedError: either is not finite; the model is unchanged.
        """
        # Dropout depends on seed, update and rank alone, so that a resumed training run draws the
        # same.
        rank = (self.ranks.rank,) if self.ranks.rank else ()  # rank 0 draws as one process does
        _seed(mix(self.config.seed, step, *rank), self._device)
        passes = batch.split(self.config.accumulate, rank=self.ranks.rank, ranks=self.ranks.size)
        losses = []
        for number, (ids, targets, weights) in enumerate(passes, 1):
            with self.parallel.gradient_sync(enabled=number == len(passes)):
                losses.append(self._backward(ids, targets, weights))
        clipped = torch.nn.utils.clip_grad_norm_(self._parameters, self.config.clip)
        norm = self.parallel.full_norm(clipped)
        total = self.ranks.sum(sum(losses, losses[0].new_zeros(())))
        loss, size = torch.stack([total, norm]).tolist()
        for name, value in (("loss", loss), ("norm of the gradient", size)):
            if not isfinite(value):
                self.optimizer.zero_grad()
                raise diverged(name, value, step + 1, batch)
        rate = learning_rate(step, self.config)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["share"]
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss, size

    def _backward(self, ids: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Add the gradient of a pass; its share of the loss."""
        ids, targets, weights = (_to(part, self._device) for part in (ids, targets, weights))
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self.bfloat16):
            logits = self.forward(ids, mask=document_mask(ids, self.end))  # (R, T, V)
        losses = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
        loss = (losses * weights.flatten()).sum()
        (loss * self.ranks.size).backward()  # ranks exchange the mean of their gradients
        return loss.detach()


def _seed(seed: int, device: torch.device) -> None:
    """Seed the generators of the CPU and of `device`, and no other device's."""
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        accelerator = torch.get_device_module(device)
        with accelerator.device(device):  # else the current device is seeded
            accelerator.manual_seed(seed)


def _to(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to a device; to a GPU from pinned memory, without waiting."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
