"""Checking, before anything large is sent, that all ranks are about to do the same.

A rank with other shapes than its neighbours would wait for numbers that never come, or read them
wrongly. So the ranks first exchange a few hundred bytes that describe the call of each; where they
differ, every rank raises.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

from regard.errors import Error
from regard_experiments.distributed.ring import Ring

Facts = Mapping[str, Any]

_BYTES = 4096
_LONGEST = 300  # characters of a text among the facts
_FAILURE = "failure"


def agree(
    ring: Ring,
    facts: Facts,
    own: Facts | None = None,
    failure: Exception | None = None,
    cure: str = "call this on every rank in the same order, with shards of the same tensors",
) -> list[dict[str, Any]]:
    """Exchange facts, and raise on every rank unless all ranks have the same.

    Args:
        ring: the ranks.
        facts: what must be the same everywhere: numbers, texts, lists of them, or None.
        own: what may differ.
        failure: why this rank can't go on; it is raised here, and sent to the other ranks.
        cure: what to do about a disagreement.

    Returns:
        The facts of each rank, its own included.

    Raises:
        ValueError: if the ranks disagree.
        Error: if another rank can't go on.
    """
    message = {name: _shortened(fact) for name, fact in {**facts, **(own or {})}.items()}
    if failure is not None:
        message = {_FAILURE: _shortened(f"{type(failure).__name__}: {failure}")}
    messages = [_decoded(numbers) for numbers in ring.all_gather(_encoded(message))]
    if failure is not None:
        raise failure
    for rank, other in enumerate(messages):
        if _FAILURE in other:
            raise Error(f"rank {rank} of {ring.size} can't take part, and raises {other[_FAILURE]}")
    for name in {name: None for other in messages for name in other if name not in (own or {})}:
        for rank, other in enumerate(messages):
            if other.get(name) != messages[0].get(name):
                raise ValueError(
                    f"the ranks disagree about {name}: rank 0 has {messages[0].get(name)}, rank "
                    f"{rank} has {other.get(name)}; {cure}"
                )
    return messages


def _shortened(fact: object) -> object:
    """Cut long texts off: the start of a repr is enough to compare."""
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
