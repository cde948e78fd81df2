"""The ring: every rank sends to the next and receives from the one before.

Liu, Zaharia and Abbeel 2023, "Ring Attention with Blockwise Transformers", arXiv:2310.01889: what
is needed next travels while what is here is computed with.

Ranks are counted within the group; r of R is this one's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from regard._ranks import RankGroup


class Ring(RankGroup):
    """The ranks of a process group, in a circle.

    Raises:
        Error: if there is no process group, or this process is not in it.
    """

    def pass_on(self, sent: Tensor, size: int) -> Transfer:
        """Start to send a flat tensor to the next rank, and to receive one from the rank before.

        Args:
            sent: what is sent; it must stay as it is until the transfer is done.
            size: how many numbers come in.
        """
        received = sent.new_empty(size)
        operations, peers = [], []
        # The neighbours know these sizes as well, so neither side waits for an empty tensor.
        if sent.numel() > 0:
            peers.append((self.rank + 1) % self.size)
            operations.append(dist.P2POp(dist.isend, sent, None, self._group, 0, peers[-1]))
        if size > 0:
            peers.append((self.rank - 1) % self.size)
            operations.append(dist.P2POp(dist.irecv, received, None, self._group, 0, peers[-1]))
        with self.report_lost_rank(*peers):
            works = dist.batch_isend_irecv(operations) if operations else []
        return Transfer(self, works, peers, sent, received)

    def reduce(self, tensor: Tensor, how: Literal["sum", "max"]) -> None:
        """Reduce a tensor over the ranks, in place."""
        operation = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}[how]
        with self.report_lost_rank():
            dist.all_reduce(tensor, operation, group=self._group)


class Transfer:
    """Something on its way to the next rank, and something else from the rank before."""

    def __init__(
        self,
        ring: Ring,
        works: list[dist.Work],
        peers: list[int],
        sent: Tensor,
        received: Tensor,
    ) -> None:
        self._ring = ring
        # One work for both where the backend joins them.
        each = [[peer] for peer in peers] if len(works) == len(peers) else [peers] * len(works)
        self._works = list(zip(works, each, strict=True))
        self._sent = sent  # which must not be freed before it is gone
        self._received = received

    def wait(self) -> Tensor:
        """Wait for both, and return what came in."""
        for work, peers in self._works:
            with self._ring.report_lost_rank(*peers):
                work.wait()
        return self._received


def circulate(ring: Ring, own: Tensor, size: Callable[[int], int]) -> Iterator[tuple[int, Tensor]]:
    """Yield each rank and its flat tensor, this rank's first; the next one travels meanwhile.

    Args:
        ring: the ranks.
        own: this rank's tensor.
        size: of each rank, how many numbers its tensor holds.
    """
    current = own
    for step in range(ring.size):
        owner = (ring.rank - step) % ring.size
        transfer = None
        if step < ring.size - 1:
            transfer = ring.pass_on(current, size((owner - 1) % ring.size))
        yield owner, current
        if transfer is not None:
            current = transfer.wait()


class KeySums:
    """Sums for each rank's keys, which go round with the keys and reach that rank at the end.

    Once at each step of `circulate`, a rank adds its part to the sum of those before it.

    Args:
        ring: the ranks.
        size: of each rank, how many numbers are summed up for it.
        how: or of which the largest is kept.
    """

    def __init__(
        self, ring: Ring, size: Callable[[int], int], how: Literal["sum", "max"] = "sum"
    ) -> None:
        self._combine = torch.maximum if how == "max" else torch.add
        self._ring = ring
        self._size = size
        self._transfer: Transfer | None = None
        self._sums: Tensor | None = None

    def add(self, owner: int, part: Tensor) -> None:
        """Add this rank's part for the keys of another, and send the sum on."""
        if self._transfer is not None:
            received = self._transfer.wait()
            part = self._combine(received, part)
        if self._ring.size == 1:
            self._sums = part
        else:
            self._transfer = self._ring.pass_on(part, self._size((owner - 1) % self._ring.size))

    def wait(self) -> Tensor:
        """Wait for the sums of this rank's own keys."""
        if self._transfer is not None:
            self._sums = self._transfer.wait()
        assert self._sums is not None, "each rank adds before it waits"
        return self._sums
