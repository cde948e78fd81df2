"""How several processes share a model: each has a copy, or each has a piece.

Both average gradients over the ranks. A rank's loss is the sum over its own rows, divided by what
counts in all of them, so that the gradients are to be added up: `Updates` multiplies by R.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch import Tensor, nn

    from regard.gpt.model import GPT
    from regard.gpt.training.config import Parallel
    from regard.gpt.training.ranks import Ranks


class SingleProcess:
    """A model that one process trains.

    Attributes:
        module: what is run.
        splits: whether this process has but a piece of the model.
    """

    splits = False

    def __init__(self, model: GPT) -> None:
        self.model = model
        self.module: nn.Module = model

    def syncing(self, *, now: bool) -> AbstractContextManager[None]:
        """Run a pass inside the block; its gradients are exchanged `now`, or by a later one."""
        del now
        return nullcontext()

    def norm(self, norm: Tensor) -> Tensor:
        """The norm of the whole gradient, of what `clip_grad_norm_` returned."""
        return norm

    def settle(self) -> None:
        """Let the model's parameters be those that the optimizer knows."""

    def weights(self) -> dict[str, Tensor]:
        """All weights, on rank 0; every rank has to ask."""
        return self.model.state_dict()


class DDP(SingleProcess):
    """A model of which each process has a copy: `DistributedDataParallel`."""

    def __init__(self, model: GPT) -> None:
        from torch.nn.parallel import DistributedDataParallel

        super().__init__(model)
        device = next(model.parameters()).device
        self._copies = DistributedDataParallel(
            model,
            device_ids=None if device.type == "cpu" else [device],
            gradient_as_bucket_view=True,
        )
        self.module = self._copies

    def syncing(self, *, now: bool) -> AbstractContextManager[None]:
        """As for one process."""
        if now:
            return nullcontext()
        return cast("AbstractContextManager[None]", self._copies.no_sync())


class FSDP(SingleProcess):
    """A model of which each process has a piece: FSDP2's `fully_shard`.

    Each block is gathered when it is run. What remains is one group, gathered once: the embedding,
    which is the head too, and so is needed first and last.
    """

    splits = True

    def __init__(self, model: GPT, ranks: Ranks) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        super().__init__(model)
        mesh = init_device_mesh(next(model.parameters()).device.type, (ranks.size,))
        for block in model.h:
            fully_shard(block, mesh=mesh)
        self._root: Any = fully_shard(model, mesh=mesh)

    def syncing(self, *, now: bool) -> AbstractContextManager[None]:
        """As for one process."""
        self._root.set_requires_gradient_sync(now)
        return nullcontext()

    def norm(self, norm: Tensor) -> Tensor:
        """As for one process; the pieces' norms are put together."""
        return cast("Any", norm).full_tensor()

    def settle(self) -> None:
        """As for one process: a pass without gradients leaves the root's group gathered."""
        self._root.reshard()

    def weights(self) -> dict[str, Tensor]:
        """As for one process; other ranks than 0 get none."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        return cast("dict[str, Tensor]", get_model_state_dict(self.model, options=options))


def spread(model: GPT, ranks: Ranks, parallel: Parallel) -> SingleProcess:
    """Share a model out; with `FSDP`, its parameters are pieces from then on."""
    if ranks.size == 1:
        return SingleProcess(model)
    return FSDP(model, ranks) if parallel == "fsdp" else DDP(model)


def like(parameter: Tensor, whole: Tensor) -> Tensor:
    """What this rank holds of a tensor, where it holds that of a parameter."""
    if not hasattr(parameter, "device_mesh"):
        return whole.to(parameter.device)
    from torch.distributed.tensor import distribute_tensor

    piece: Any = parameter
    whole = whole.to(parameter.device)
    # Every rank has read the whole, so nothing needs to be sent.
    return distribute_tensor(whole, piece.device_mesh, piece.placements, src_data_rank=None)


def empty_like(parameter: Tensor) -> Tensor:
    """Room for what an optimizer remembers of a parameter, as this rank holds it."""
    return torch.empty_like(parameter, requires_grad=False)
