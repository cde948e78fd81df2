"""The ranks that train a model together, or the single process that trains it.

Each of R ranks computes its rows of every batch; gradients, losses and stop signals are reduced
over all. If one rank fails, for example to read a file, all raise an error, and none waits for it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from regard._ranks import RankGroup, agree
from regard.errors import Error

_TIMEOUT = timedelta(minutes=10)
"""Timeout after which a rank counts as lost; if its process ended, it does so immediately."""
_LONG_TIMEOUT = timedelta(days=1)
"""Timeout of the other ranks while rank 0 prepares a corpus."""
_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
"""Environment variables with the number of processes: torch's, Open MPI's and MPICH's."""


@dataclass
class RankStatus:
    """Values that ranks exchange.

    Attributes:
        equal: this rank's values that must be equal on all ranks.
        own: its values that may differ.
        all: after the exchange, `own` of each rank.
    """

    equal: dict[str, Any] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)
    all: list[dict[str, Any]] = field(default_factory=list)


class Ranks:
    """The ranks of this process's process group; a single one without a group.

    Attributes:
        rank: this process's number.
        size: the number of ranks.
    """

    def __init__(self) -> None:
        in_group = dist.is_available() and dist.is_initialized()
        self.rank, self.size = (dist.get_rank(), dist.get_world_size()) if in_group else (0, 1)
        self._slow_group: dist.ProcessGroup | None = None
        if self.size > 1:
            self._slow_group = dist.new_group(backend="gloo", timeout=_LONG_TIMEOUT)

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which alone writes files and shows progress."""
        return self.rank == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Destroy the group with the long timeout."""
        if self._slow_group is not None:
            dist.destroy_process_group(self._slow_group)

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over the ranks, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def any(self, *flags: bool, device: torch.device) -> list[bool]:
        """Return whether each flag is set on any rank."""
        if self.size == 1:
            return [*flags]
        # An exchange on the CPU, if the group supports it, needs no synchronization.
        place = "cpu" if "cpu" in dist.get_backend_config() else device
        counts = self.sum(torch.tensor(flags, device=place).int())
        return [count > 0 for count in counts.tolist()]

    @contextmanager
    def synchronized(self, *, long: bool = False) -> Iterator[RankStatus]:
        """Wait for every rank at the end of the block; if one fails in it, all fail.

        Args:
            long: whether the block may take as long as the preparation of a corpus.

        Raises:
            Error: if another rank failed; the message has its error.
            ValueError: if values that must be equal differ.
        """
        status = RankStatus()
        if self.size == 1:
            yield status
            status.all = [status.own]
            return
        failure = None
        try:
            yield status
        except Exception as error:  # noqa: BLE001 - raised again by `agree`
            failure = error
        everyone = agree(
            RankGroup(self._slow_group if long else None),
            status.equal,
            {"own": status.own},
            failure,
            cure="start every rank by the same command, with the same text and the same versions; "
            "where processors differ, choose precision and compile yourself",
        )
        status.all = [one["own"] for one in everyone]

    def require_shared(self, folder: Path) -> None:
        """Raise on every rank unless all see the same folder."""
        mark = tempfile.TemporaryDirectory(prefix=".together", dir=folder) if self.is_main else None
        with mark or nullcontext():
            with self.synchronized() as status:
                status.own["mark"] = None if mark is None else Path(mark.name).name
            with self.synchronized():
                if not (folder / status.all[0]["mark"]).is_dir():
                    raise Error(
                        f"{folder} is another folder on rank {self.rank} than on rank 0; train "
                        "into a folder that all machines share"
                    )

    @contextmanager
    def report_lost_rank(self) -> Iterator[None]:
        """Raise `Error` with the cure if a rank is lost inside the block.

        Raises:
            Error: if an exchange failed.
        """
        try:
            yield
        except RuntimeError as error:
            if self.size == 1 or not _is_lost(error):
                raise
            reason = str(error).partition("\n")[0].partition(". ")[0]
            raise Error(
                f"rank {self.rank} of {self.size} lost another rank: its process has ended, or "
                "hangs, or its machine can't be reached. Look for the first error among the "
                "ranks' outputs, then start all of them again with --resume, or resume=True, which "
                f"continues from the latest checkpoint ({reason})"
            ) from error


def is_main_process() -> bool:
    """Return whether this process is rank 0, or in no group."""
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


@contextmanager
def init_distributed(device: torch.device) -> Iterator[torch.device]:
    """Join the process group of `torchrun`, if it started this process.

    Args:
        device: where to train.

    Yields:
        The device of this rank: the accelerator with its local rank's number.

    Raises:
        ValueError: if another launcher started this process, as one of several.
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
    # Not after a failure: destroying the group could wait for a lost rank.
    dist.destroy_process_group()


def _require_alone() -> None:
    """Raise ValueError if another launcher than torchrun has started several processes.

    Otherwise each would train its own model, or find the folder locked.
    """
    for name in _SIZES:
        size = os.environ.get(name, "")
        if size.isdecimal() and int(size) > 1:
            raise ValueError(
                f"{name}={size} in the environment says that a launcher has started {size} "
                "processes, and regard knows those of torchrun alone: start `torchrun "
                "--nproc-per-node N -m regard train ...` once on each machine, or, to train in "
                f"this process alone, unset {name}"
            )


def _is_lost(error: RuntimeError) -> bool:
    """Return whether an error is about communication; gloo raises plain `RuntimeError`."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)
