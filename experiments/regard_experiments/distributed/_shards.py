"""Cutting a sequence into the ranks' shards, and putting it together again."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from regard._ranks import agree
from regard._shapes import Int, Shaped
from regard_experiments.distributed._layout import Layout
from regard_experiments.distributed.ring import Ring, circulate


def layout(length: int, *, group: dist.ProcessGroup | None = None) -> Layout:
    """Lay a sequence out over the ranks of a group.

    Args:
        length: number of positions of the whole sequence.
        group: the ranks; None is the default group.

    Example:
        >>> import torch, torch.distributed as dist
        >>> from regard_experiments.distributed import layout
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> layout(5).size(0)
        5
        >>> dist.destroy_process_group()
    """
    return Layout(length, Ring(group).size)


def positions(length: int, *, group: dist.ProcessGroup | None = None) -> Int[Tensor, "n"]:
    """List the positions that this rank holds, in the order of its shard.

    Rotary and other positions of a model need them.

    Args:
        length: number of positions of the whole sequence.
        group: the ranks; None is the default group.

    Example:
        >>> import torch, torch.distributed as dist
        >>> from regard_experiments.distributed import positions
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> positions(5)
        tensor([0, 1, 2, 3, 4])
        >>> dist.destroy_process_group()
    """
    ring = Ring(group)
    return Layout(length, ring.size).positions(ring.rank)


def shard(
    x: Shaped[Tensor, "..."], dim: int, *, group: dist.ProcessGroup | None = None
) -> Shaped[Tensor, "..."]:
    """Cut this rank's positions out of a whole sequence; nothing is sent.

    Args:
        x: the whole sequence, the same on every rank.
        dim: the axis of its positions.
        group: the ranks; None is the default group.

    Returns:
        A copy of the positions that this rank holds, an early and a late chunk.

    Example:
        >>> import torch, torch.distributed as dist
        >>> from regard_experiments.distributed import shard
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> shard(torch.arange(5), 0)
        tensor([0, 1, 2, 3, 4])
        >>> dist.destroy_process_group()
    """
    ring = Ring(group)
    chunks = Layout(x.shape[dim], ring.size).chunks(ring.rank)
    spans = [chunk.positions for chunk in chunks] or [slice(0, 0)]
    return torch.cat([x.narrow(dim, s.start, s.stop - s.start) for s in spans], dim)


@torch.no_grad()
def unshard(
    x: Shaped[Tensor, "..."], dim: int, *, group: dist.ProcessGroup | None = None
) -> Shaped[Tensor, "..."]:
    """Put a sequence together again from the shards of all ranks; every rank calls it.

    It is for looking at results: no gradient goes through it, and each rank gets the whole.

    Args:
        x: this rank's shard.
        dim: the axis of its positions.
        group: the ranks; None is the default group.

    Raises:
        ValueError: if the shards do not fit together.
        Error: if there is no process group, or another rank has failed.

    Example:
        >>> import torch, torch.distributed as dist
        >>> from regard_experiments.distributed import shard, unshard
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> unshard(shard(torch.arange(5), 0), 0)
        tensor([0, 1, 2, 3, 4])
        >>> dist.destroy_process_group()
    """
    ring = Ring(group)
    others = [*x.shape]
    own_size = others.pop(dim)
    facts = {
        "the call": "unshard",
        "the axis of positions": dim % x.ndim,
        "the other axes": others,
        "dtype": str(x.dtype),
        "the kind of device": x.device.type,
    }
    sizes = [one["positions"] for one in agree(ring, facts, {"positions": own_size})]
    layout = Layout(sum(sizes), ring.size)
    if sizes != [layout.size(rank) for rank in range(ring.size)]:
        raise ValueError(
            f"the ranks hold {sizes} positions, which are not shards of {layout.length}; cut the "
            "whole sequence with regard_experiments.distributed.shard(x, dim)"
        )
    each = torch.Size(others).numel()
    shape = [*x.shape]
    shape[dim] = layout.length
    whole = x.new_empty(shape)
    flat = x.contiguous().reshape(-1)
    for owner, part in circulate(ring, flat, lambda rank: each * layout.size(rank)):
        shape[dim] = layout.size(owner)
        of_owner = part.view(shape)
        for local, place in layout.chunks(owner):
            size = local.stop - local.start
            whole.narrow(dim, place.start, size).copy_(of_owner.narrow(dim, local.start, size))
    return whole
