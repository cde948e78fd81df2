"""The processes that train a model together; or the one that trains it alone.

Of R ranks, each computes its rows of every batch; gradients, losses and the choice to stop are put
together. What one rank cannot do, such as read a file, is told to all, so that none waits for it.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from regard.distributed import DistributedError
from regard.distributed.agree import agree
from regard.distributed.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor

_TIMEOUT = timedelta(minutes=10)
"""A rank that is silent for so long is lost; one whose process ends is, at once."""
_PATIENCE = timedelta(days=1)
"""How long the others wait for rank 0 to prepare a corpus."""
_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
"""How many processes there are, by launchers for torch, Open MPI's mpirun and MPICH's."""


@dataclass
class RankStatus:
    """What ranks tell each other.

    Attributes:
        same: facts that have to be the same on all ranks.
        own: facts that may differ.
        all: afterwards, the facts of each rank.
    """

    same: dict[str, Any] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)
    all: list[dict[str, Any]] = field(default_factory=list)


class Ranks:
    """The ranks of the process group that this process is in; of one, where it is in none.

    Attributes:
        rank: this process's number.
        size: how many there are.
    """

    def __init__(self) -> None:
        joined = dist.is_available() and dist.is_initialized()
        self.rank, self.size = (dist.get_rank(), dist.get_world_size()) if joined else (0, 1)
        self._patient: dist.ProcessGroup | None = None
        if self.size > 1:
            self._patient = dist.new_group(backend="gloo", timeout=_PATIENCE)

    @property
    def leads(self) -> bool:
        """Whether this rank is the one that writes and shows what there is once."""
        return self.rank == 0

    def close(self) -> None:
        """Leave the process group as it was."""
        if self._patient is not None:
            dist.destroy_process_group(self._patient)

    def part(self, rows: int) -> slice:
        """Which of a batch's rows are this rank's; their numbers differ by one at most."""
        return slice(self.rank * rows // self.size, (self.rank + 1) * rows // self.size)

    def add_up(self, tensor: Tensor) -> Tensor:
        """Add a tensor up over the ranks, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def any(self, *asked: bool, device: torch.device) -> list[bool]:
        """Of some things, whether each is so on any rank."""
        if self.size == 1:
            return [*asked]
        return [
            number > 0 for number in self.add_up(torch.tensor(asked, device=device).int()).tolist()
        ]

    @contextmanager
    def agreeing(self, *, patient: bool = False) -> Iterator[RankStatus]:
        """Do something on every rank, wait for the others, and fail where one of them does.

        Args:
            patient: whether a rank may take as long as a corpus takes.

        Raises:
            DistributedError: another rank failed, with what.
            ValueError: facts that have to be the same are not.
        """
        said = RankStatus()
        if self.size == 1:
            yield said
            said.all = [said.own]
            return
        failure = None
        try:
            yield said
        except Exception as error:  # noqa: BLE001 - raised again, when the others know
            failure = error
        ring = Ring(self._patient if patient else None)
        everyone = agree(
            ring,
            said.same,
            {"own": said.own},
            failure,
            cure="start every rank by the same command, with the same text and the same versions; "
            "where processors differ, choose precision and compile yourself",
        )
        said.all = [one["own"] for one in everyone]

    def require_shared(self, folder: Path) -> None:
        """Raise on every rank unless all see the same folder."""
        with tempfile.TemporaryDirectory(prefix=".together", dir=folder) if self.leads else _none():
            with self.agreeing() as said:
                if self.leads:
                    (mark,) = folder.glob(".together*")
                    said.own["mark"] = mark.name
            with self.agreeing():
                if not (folder / said.all[0]["mark"]).is_dir():
                    raise DistributedError(
                        f"{folder} is another folder on rank {self.rank} than on rank 0; train "
                        "into a folder that all machines share"
                    )

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Say of a rank that is lost inside the block what to do.

        Raises:
            DistributedError: an exchange failed.
        """
        try:
            yield
        except RuntimeError as error:
            if self.size == 1 or not _is_lost(error):
                raise
            reason = str(error).partition("\n")[0].partition(". ")[0]
            raise DistributedError(
                f"rank {self.rank} of {self.size} lost another rank: its process has ended, or "
                "hangs, or its machine can't be reached. Look for the first error among the "
                "ranks' outputs, then start all of them again with --resume, or resume=True, which "
                f"goes on from the latest checkpoint ({reason})"
            ) from error


@contextmanager
def joined() -> Iterator[Ranks]:
    """The ranks, for as long as a run takes."""
    ranks = Ranks()
    try:
        yield ranks
    finally:
        ranks.close()


def leading() -> bool:
    """Whether this process is the one that writes and shows what there is once."""
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


@contextmanager
def launched(device: torch.device) -> Iterator[torch.device]:
    """Join the processes that `torchrun` started, if it started this one.

    Args:
        device: where to train.

    Yields:
        The device of this rank: of several of a kind, the one with its number on its machine.

    Raises:
        ValueError: another launcher started this process, as one of several.
    """
    if not dist.is_available() or not dist.is_torchelastic_launched():
        _require_alone()
        yield device
        return
    backend = "gloo"
    if device.type != "cpu":
        device = torch.device(device.type, int(os.environ["LOCAL_RANK"]))
        torch.accelerator.set_device_index(device)
        own = dist.get_default_backend_for_device(device.type)
        backend = f"cpu:gloo,{device.type}:{own}"
    dist.init_process_group(backend, timeout=_TIMEOUT)
    yield device
    # After a failure the process ends as it is: another rank may be gone that would be waited for.
    dist.destroy_process_group()


def _require_alone() -> None:
    """Raise ValueError where another launcher than torchrun has started several processes.

    Each would else train a model of its own, or find the folder taken by another.
    """
    for name in _SIZES:
        size = os.environ.get(name, "")
        if size.isdecimal() and int(size) > 1:
            raise ValueError(
                f"{name}={size} in the environment says that a launcher has started {size} "
                "processes, and regard knows those of torchrun alone: start `torchrun "
                "--nproc-per-node N -m regard.train ...` once on each machine, or, to train in "
                f"this process alone, unset {name}"
            )


def _is_lost(error: RuntimeError) -> bool:
    """Whether an error is about an exchange: gloo's are of no class of their own."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)


@contextmanager
def _none() -> Iterator[None]:
    yield
