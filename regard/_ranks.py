"""The ranks of a process group, and checks that all of them make the same call.

If a rank had other shapes than its neighbours, it would hang or misread their data. So before
tensors are sent, the ranks exchange a short description of their calls; if they differ, every rank
raises an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from regard.errors import Error

Facts = Mapping[str, Any]

_BYTES = 4096
_LONGEST = 300  # characters of a text among the facts
_FAILURE = "failure"


class RankGroup:
    """The ranks of a process group, counted within it; the default group if None.

    Raises:
        Error: if there is no process group, or this process is not in it.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise Error(
                "there is no process group; start one process a rank, as `torchrun` does, and call "
                "torch.distributed.init_process_group() first"
            )
        self._group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise Error(
                f"rank {dist.get_rank()} is not in this group; call this only on ranks that "
                "were named in torch.distributed.new_group"
            )

    def all_gather(self, numbers: Tensor) -> list[Tensor]:
        """Collect a small tensor from each rank."""
        numbers = numbers.to(self._device)
        gathered = [torch.empty_like(numbers) for _ in range(self.size)]
        with self.report_lost_rank():
            dist.all_gather(gathered, numbers, group=self._group)
        return [one.cpu() for one in gathered]

    @property
    def _device(self) -> torch.device:
        """The device for short exchanges: the CPU if supported, else an accelerator."""
        if "cpu" in dist.get_backend_config(self._group):
            return torch.device("cpu")
        device = torch.accelerator.current_accelerator()
        assert device is not None, "a group that serves no CPU serves an accelerator"
        return device

    @contextmanager
    def report_lost_rank(self, *peers: int) -> Iterator[None]:
        """Raise `Error` with ranks and cure if an exchange fails."""
        try:
            yield
        except RuntimeError as error:
            others = sorted(set(peers or range(self.size)) - {self.rank})
            names = f"rank{'s' if len(others) > 1 else ''} {', '.join(map(str, others))}"
            reason = str(error).partition("\n")[0].partition(". ")[0]
            raise Error(
                f"rank {self.rank} of {self.size} lost {names}: a process has ended, hangs, or "
                "left the ring because of another one. Look for the first error among the ranks' "
                f"outputs, then start all of them again from the last checkpoint ({reason})"
            ) from error


def agree(
    group: RankGroup,
    facts: Facts,
    own: Facts | None = None,
    failure: Exception | None = None,
    cure: str = "call this on every rank in the same order, with shards of the same tensors",
) -> list[dict[str, Any]]:
    """Exchange values, and raise an error on every rank unless all ranks have the same.

    Args:
        group: the ranks.
        facts: values that must be equal: numbers, strings, lists of them, or None.
        own: values that may differ.
        failure: an exception on this rank; it is raised here and reported to the other ranks.
        cure: the cure for a disagreement.

    Returns:
        The values of each rank, this one included.

    Raises:
        ValueError: if the ranks disagree.
        Error: if another rank failed.
    """
    message = {name: _shortened(fact) for name, fact in {**facts, **(own or {})}.items()}
    if failure is not None:
        message = {_FAILURE: _shortened(f"{type(failure).__name__}: {failure}")}
    messages = [_decoded(numbers) for numbers in group.all_gather(_encoded(message))]
    if failure is not None:
        raise failure
    for rank, other in enumerate(messages):
        if _FAILURE in other:
            raise Error(
                f"rank {rank} of {group.size} can't take part, and raises {other[_FAILURE]}"
            )
    for name in {name: None for other in messages for name in other if name not in (own or {})}:
        for rank, other in enumerate(messages):
            if other.get(name) != messages[0].get(name):
                raise ValueError(
                    f"the ranks disagree about {name}: rank 0 has {messages[0].get(name)}, rank "
                    f"{rank} has {other.get(name)}; {cure}"
                )
    return messages


def _shortened(fact: object) -> object:
    """Truncate long strings; the start of a repr is enough to compare."""
    if isinstance(fact, (list, tuple)):
        return [_shortened(one) for one in fact]
    return fact[:_LONGEST] if isinstance(fact, str) else fact


def _encoded(facts: Facts) -> torch.Tensor:
    text = json.dumps(facts, ensure_ascii=False).encode(errors="backslashreplace")
    assert len(text) <= _BYTES, f"the facts take {len(text)} bytes"
    return torch.tensor([*text.ljust(_BYTES)], dtype=torch.uint8, device="cpu")


def _decoded(numbers: torch.Tensor) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(bytes(numbers.tolist()))
    return facts
