"""A model in one process, or in several that hold copies of it (DDP).

DDP averages gradients over the R ranks. A rank's loss is the sum over its own rows, divided by the
number of targets of all rows, so gradients must be summed: `TrainStep` multiplies the loss by R.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import cast

from torch import Tensor, nn

from regard._shapes import Float, Int
from regard.gpt.model import GPT
from regard.gpt.training.ranks import Ranks
from regard.masks import Mask


class ModelLoss(nn.Module):
    """A model's loss as the forward pass of a module, which DDP and the compiler take."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        ids: Int[Tensor, "R T"],
        targets: Int[Tensor, "R T"],
        weights: Float[Tensor, "R T"],
        mask: Mask | None,
    ) -> Float[Tensor, ""]:
        """As `GPT.loss`."""
        return self.model.loss(ids, targets, weights, mask=mask)


class SingleProcess:
    """A model in a single process.

    Attributes:
        model: the model.
        loss: a module that computes its loss.
    """

    def __init__(self, model: GPT) -> None:
        self.model = model
        self.loss: nn.Module = ModelLoss(model)

    def gradient_sync(self, *, enabled: bool) -> AbstractContextManager[None]:
        """Reduce the gradients of a pass inside the block, or defer that to a later pass."""
        del enabled
        return nullcontext()


class DDP(SingleProcess):
    """A copy of the model in each process: `DistributedDataParallel`."""

    def __init__(self, model: GPT) -> None:
        from torch.nn.parallel import DistributedDataParallel

        super().__init__(model)
        device = next(model.parameters()).device
        self._copies = DistributedDataParallel(
            self.loss,
            device_ids=None if device.type == "cpu" else [device],
            gradient_as_bucket_view=True,
        )
        self.loss = self._copies

    def gradient_sync(self, *, enabled: bool) -> AbstractContextManager[None]:
        """As for one process."""
        if enabled:
            return nullcontext()
        return cast("AbstractContextManager[None]", self._copies.no_sync())


def parallelize(model: GPT, ranks: Ranks) -> SingleProcess:
    """Prepare a model for the ranks."""
    return SingleProcess(model) if ranks.size == 1 else DDP(model)
