"""A model in one process, or in several that hold copies (DDP) or shards (FSDP).

DDP and FSDP average gradients over the R ranks. A rank's loss is the sum over its own rows, divided
by the targets of all rows, so gradients have to be summed: `TrainStep` multiplies the loss by R.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

from torch import Tensor, nn

from regard._shapes import Float, Int
from regard.gpt.model import GPT
from regard.gpt.training.config import Parallel
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
        is_sharded: whether this process has only a shard of the model.
    """

    is_sharded = False

    def __init__(self, model: GPT) -> None:
        self.model = model
        self.loss: nn.Module = ModelLoss(model)

    def gradient_sync(self, *, enabled: bool) -> AbstractContextManager[None]:
        """Exchange the gradients of a pass inside the block, or leave them to a later pass."""
        del enabled
        return nullcontext()

    def full_norm(self, norm: Tensor) -> Tensor:
        """The norm of the whole gradient, from what `get_total_norm` returned."""
        return norm

    def reshard(self) -> None:
        """Make the model's parameters those that the optimizer has."""

    def full_weights(self) -> dict[str, Tensor]:
        """All weights, on rank 0; every rank has to call this."""
        return self.model.state_dict()


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


class FSDP(SingleProcess):
    """A shard of the model in each process: FSDP2's `fully_shard`.

    Each block is gathered when it runs. The rest is one group, gathered once: the embedding, which
    is the head too, is needed first and last.
    """

    is_sharded = True

    def __init__(self, model: GPT, ranks: Ranks) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        super().__init__(model)
        mesh = init_device_mesh(next(model.parameters()).device.type, (ranks.size,))
        for block in model.h:
            fully_shard(block, mesh=mesh)
        self._root: Any = fully_shard(model, mesh=mesh)

    def gradient_sync(self, *, enabled: bool) -> AbstractContextManager[None]:
        """As for one process."""
        self._root.set_requires_gradient_sync(enabled)
        return nullcontext()

    def full_norm(self, norm: Tensor) -> Tensor:
        """As for one process; the norms of the shards are combined."""
        return cast("Any", norm).full_tensor()

    def reshard(self) -> None:
        """As for one process: a pass without gradients leaves the root's group gathered."""
        self._root.reshard()

    def full_weights(self) -> dict[str, Tensor]:
        """As for one process; other ranks than 0 get none."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        return cast("dict[str, Tensor]", get_model_state_dict(self.model, options=options))


def parallelize(model: GPT, ranks: Ranks, parallel: Parallel) -> SingleProcess:
    """Prepare a model for the ranks; with FSDP its parameters become shards."""
    if ranks.size == 1:
        return SingleProcess(model)
    return FSDP(model, ranks) if parallel == "fsdp" else DDP(model)


def shard_like(parameter: Tensor, whole: Tensor) -> Tensor:
    """This rank's shard of a tensor, sharded as a parameter is."""
    if not hasattr(parameter, "device_mesh"):
        return whole.to(parameter.device)
    from torch.distributed.tensor import distribute_tensor

    sharded: Any = parameter
    whole = whole.to(parameter.device)
    # Every rank has read the whole, so nothing needs to be sent.
    return distribute_tensor(whole, sharded.device_mesh, sharded.placements, src_data_rank=None)
