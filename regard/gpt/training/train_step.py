"""One update of a training run: loss, gradient, step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite

import torch
from torch import Tensor

from regard._tensors import upload
from regard.gpt._memory_pool import MemoryPool
from regard.gpt.errors import DivergedError
from regard.gpt.training._permutation import mix
from regard.gpt.training.batches import Batch, document_mask
from regard.gpt.training.checkpoints import TrainingRunFolder
from regard.gpt.training.config import TrainConfig
from regard.gpt.training.optimizer import Optimizers
from regard.gpt.training.parallel import SingleProcess
from regard.gpt.training.ranks import Ranks
from regard.gpt.training.schedule import learning_rate

# A gradient whose norm is below this fraction of `TrainConfig.clip` is not clipped: multiplying it
# by 1 would cost a pass over memory.
_CLIP_MARGIN = 0.999
_NAMED = 8  # maximum number of windows that an error names


@dataclass(kw_only=True)
class TrainStep:
    """One update: loss, gradient, step.

    Attributes:
        parallel: the model, in one process or several.
        ranks: the ranks, among which the rows of a batch are divided.
        optimizer: the optimizer of the model's parameters.
        config: the recipe.
        bfloat16: whether matrix products are computed in it.
        end: the token that ends a document, if attention is masked across documents; else None.
        loss: the `ModelLoss` of the model, maybe compiled.
    """

    parallel: SingleProcess
    ranks: Ranks
    optimizer: Optimizers
    config: TrainConfig
    bfloat16: bool
    end: int | None
    loss: Callable[..., Tensor]
    _parameters: list[torch.nn.Parameter] = field(init=False)

    def __post_init__(self) -> None:
        self._parameters = list(self.parallel.model.parameters())
        self._device = self._parameters[0].device
        self._memory = MemoryPool()

    def __call__(self, step: int, batch: Batch) -> Tensor:
        """Make an update; each rank computes its part of the rows.

        Args:
            step: its number, from 0.
            batch: all of its rows.

        Returns:
            The loss, in nats a token, and the gradient's norm before clipping, both of all rows:
            ``(2,)``, on the model's device. On CUDA neither is read.

        Raises:
            DivergedError: if either is not finite, except on CUDA; the model is unchanged.
        """
        # Dropout depends only on seed, update and rank, so a resumed training run draws the same.
        rank = (self.ranks.rank,) if self.ranks.rank else ()  # rank 0 draws like a single process
        _seed(mix(self.config.seed, step, *rank), self._device)
        passes = batch.split(self.config.accumulate, rank=self.ranks.rank, ranks=self.ranks.size)
        losses = []
        for number, (ids, targets, weights) in enumerate(passes, 1):
            sync = self.parallel.gradient_sync(enabled=number == len(passes))
            with sync, self._memory.used():
                losses.append(self._backward(ids, targets, weights))
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        total = self.ranks.sum(sum(losses, losses[0].new_zeros(())))
        outcome = torch.stack([total, norm])  # (2,)
        if not outcome.is_cuda:
            try:
                loss, gradient_norm = outcome.tolist()
                require_finite(loss, gradient_norm, step + 1, batch)
            except DivergedError:
                self.optimizer.zero_grad()
                raise
        if outcome.is_cuda or gradient_norm > _CLIP_MARGIN * self.config.clip:
            torch.nn.utils.clip_grads_with_norm_(self._parameters, self.config.clip, norm)
        rate = learning_rate(step, self.config)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["share"]
        self.optimizer.step()
        self.optimizer.zero_grad()
        return outcome

    def _backward(self, ids: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Accumulate the gradient of a pass, and return its part of the loss."""
        ids, targets, weights = (upload(part, self._device) for part in (ids, targets, weights))
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self.bfloat16):
            loss = self.loss(ids, targets, weights, document_mask(ids, self.end))
        (loss * self.ranks.size).backward()  # gradients are averaged over the ranks
        return loss.detach()


def _seed(seed: int, device: torch.device) -> None:
    """Seed the generators of the CPU and of `device`, but of no other device."""
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        accelerator = torch.get_device_module(device)
        with accelerator.device(device):  # else the current device is seeded
            accelerator.manual_seed(seed)


def diverged(name: str, value: float, update: int, batch: Batch) -> DivergedError:
    """Return the error for a value of an update, from 1; it names the windows of the batch."""
    starts = tuple(batch.starts[batch.starts >= 0].tolist())
    named = ", ".join(map(str, starts[:_NAMED])) + (" …" if len(starts) > _NAMED else "")
    windows = f"{len(starts)} windows of {batch.ids.shape[1]} tokens that begin at token {named}"
    return DivergedError(
        f"the {name} is {value} at update {update}, whose batch has {windows} of the training "
        f"text, and {len(batch.starts) - len(starts)} random spans",
        step=update,
        starts=starts,
    )


def require_finite(loss: float, norm: float, update: int, batch: Batch) -> None:
    """Check that loss and gradient of an update, counted from 1, are finite.

    Raises:
        DivergedError: if they are not.
    """
    for name, value in (("loss", loss), ("norm of the gradient", norm)):
        if not isfinite(value):
            raise diverged(name, value, update, batch)


@contextmanager
def divergence_advice(folder: TrainingRunFolder, config: TrainConfig) -> Iterator[None]:
    """Add the latest checkpoint and the cure to a `DivergedError`."""
    try:
        yield
    except DivergedError as error:
        raise DivergedError(
            f"{error}; {folder.describe_latest()}; train anew with a lower learning_rate than "
            f"{config.learning_rate} or a longer warmup than {config.warmup}",
            step=error.step,
            starts=error.starts,
        ) from None
