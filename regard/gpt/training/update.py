"""One update: the batch's loss, its gradient, a step of AdamW."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from regard.gpt.errors import DivergedError
from regard.gpt.training._permutation import mix
from regard.gpt.training.batches import IGNORED
from regard.gpt.training.schedule import learning_rate
from regard.mask import documents

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from regard.gpt.model import GPT
    from regard.gpt.training.batches import Batch
    from regard.gpt.training.config import TrainConfig
    from regard.gpt.training.parallel import SingleProcess
    from regard.gpt.training.ranks import Ranks
    from regard.mask import Mask

_NAMED = 8  # windows that an error names


@dataclass(kw_only=True)
class Updates:
    """What turns batches into a better model.

    Attributes:
        spread: the model, and what each rank has of it.
        ranks: which share the rows of a batch.
        optimizer: of its parameters.
        config: the recipe.
        bfloat16: whether products are computed in it.
        end: the token that ends a document, where attention is to stay within one.
        run: the model's forward pass, compiled or as it is.
    """

    spread: SingleProcess
    ranks: Ranks
    optimizer: torch.optim.Optimizer
    config: TrainConfig
    bfloat16: bool
    end: int | None
    run: Callable[..., Tensor]
    _parameters: list[torch.nn.Parameter] = field(init=False)

    def __post_init__(self) -> None:
        self._parameters = list(self.spread.model.parameters())
        self._device = self._parameters[0].device

    def __call__(self, step: int, batch: Batch) -> tuple[float, float]:
        """Make an update; each rank computes its part of the rows.

        Dropout is a function of the seed, the update's number and the rank, so no state of a
        generator has to outlive an interruption.

        Args:
            step: its number, from 0.
            batch: all of its rows.

        Returns:
            The loss, in nats a token, and the gradient's norm before it was clipped: of all rows.

        Raises:
            DivergedError: either is no finite number; the model is as it was.
        """
        own = (self.ranks.rank,) if self.ranks.rank else ()  # rank 0 draws as one process does
        _seed(mix(self.config.seed, step, *own), self._device)
        passes = self._passes(batch)
        losses = []
        for number, (ids, targets) in enumerate(passes, 1):
            with self.spread.syncing(now=number == len(passes)):
                losses.append(self._add_gradient(ids, targets, batch.counted))
        norm = self.spread.norm(torch.nn.utils.clip_grad_norm_(self._parameters, self.config.clip))
        total = self.ranks.add_up(sum(losses, losses[0].new_zeros(())))
        loss, size = torch.stack([total, norm]).tolist()
        for name, value in (("loss", loss), ("norm of the gradient", size)):
            if not isfinite(value):
                self.optimizer.zero_grad()
                raise diverged(name, value, step + 1, batch)
        rate = learning_rate(step, self.config)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss, size

    def _passes(self, batch: Batch) -> list[tuple[Tensor, Tensor]]:
        """Ids and targets of each pass: as many passes on every rank, which wait for each other.

        A pass has the rows that it has in a single process, so several ranks need fewer of them. A
        rank that has no rows left for its last one runs a row in which nothing counts.
        """
        rows = len(batch.ids)
        each = rows // self.config.accumulate
        most = -(-rows // self.ranks.size)
        ids, targets = (part[self.ranks.part(rows)] for part in (batch.ids, batch.targets))
        passes = (
            [] if len(ids) == 0 else list(zip(ids.split(each), targets.split(each), strict=True))
        )
        idle = batch.ids.new_zeros(1, batch.ids.shape[1])
        missing = -(-most // each) - len(passes)
        return passes + [(idle, torch.full_like(idle, IGNORED))] * missing

    def _add_gradient(self, ids: Tensor, targets: Tensor, counted: int) -> Tensor:
        ids, targets = _sent(ids, self._device), _sent(targets, self._device)
        with autocast(self._device, on=self.bfloat16):
            logits = self.run(ids, mask=document_mask(ids, self.end))  # (R, T, V)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")
        loss = loss / counted
        (loss * self.ranks.size).backward()  # what several ranks exchange is the mean
        return loss.detach()


def diverged(name: str, value: float, update: int, batch: Batch) -> DivergedError:
    """What to tell of an update, counted from 1, that ends in something that is no number."""
    starts = tuple(batch.starts[batch.starts >= 0].tolist())
    named = ", ".join(map(str, starts[:_NAMED])) + (" …" if len(starts) > _NAMED else "")
    windows = f"{len(starts)} windows of {batch.ids.shape[1]} tokens that begin at token {named}"
    return DivergedError(
        f"the {name} is {value} at update {update}, whose batch has {windows} of the training "
        f"text, and {len(batch.starts) - len(starts)} random runs",
        step=update,
        starts=starts,
    )


def _sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to a device; to a GPU from pinned memory, for which this thread does not wait."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def _seed(seed: int, device: torch.device) -> None:
    """What `torch.manual_seed` does, for one device, without keeping a note of every call."""
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        there = torch.get_device_module(device)
        with there.device(device):  # else it would seed the one that torch stands at
            there.manual_seed(seed)


def autocast(device: torch.device, *, on: bool) -> torch.autocast:
    """Compute matrix products in bfloat16 inside the block, or all as ever."""
    return torch.autocast(device.type, torch.bfloat16, enabled=on)


def document_mask(ids: Tensor, end: int | None) -> Mask | None:
    """Keep the documents of each row apart; an end token belongs to the document that it ends."""
    if end is None:
        return None
    ends = ids == end
    return documents(ends.cumsum(-1) - ends.long())


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


def optimizer_state(model: GPT, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What the optimizer remembers of each parameter, by the parameter's name."""
    assert all(parameter in optimizer.state for parameter in model.parameters())
    return {
        f"{kind}.{name}": value
        for name, parameter in model.named_parameters()
        for kind, value in optimizer.state[parameter].items()
    }


def restore_optimizer(
    model: GPT, optimizer: torch.optim.Optimizer, state: dict[str, Tensor]
) -> None:
    """Let the optimizer remember what `optimizer_state` told."""
    for name, parameter in model.named_parameters():
        optimizer.state[parameter] = {
            kind: state[f"{kind}.{name}"] for kind in ("step", "exp_avg", "exp_avg_sq")
        }
