"""Refusing recordings of several runs where each layer is expected once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from regard.errors import RecordError
from regard.record.layer import Layer


def require_one_run(layers: Sequence[Layer], what: str) -> Sequence[Layer]:
    """Give the layers back, unless one of them is there twice.

    Those of a second run would be taken for further layers of the model.

    Args:
        layers: of one kind.
        what: what needs one run, such as ``"rollout"``.

    Raises:
        RecordError: if a layer attended in several runs.
    """
    times = Counter(layer.index for layer in layers)
    for layer in layers:
        if times[layer.index] > 1:
            name = layer.name or f"layer {layer.index}"
            raise RecordError(
                f"{what} goes over the layers of one run, but "
                f"{attended(name, times[layer.index])}; record one run at a time"
            )
    return layers


def attended(name: str, times: int) -> str:
    """Say that a name stands for several patterns."""
    return f"{name!r} attended {times} times in this recording"
