"""A `Monitor`'s numbers in Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["WandbWriter"]

_AXIS = "attention/update"


class WandbWriter:
    """A writer of a `regard.Monitor` that logs to a run of Weights & Biases (extra ``trackers``).

    The x axis is ``attention/update``: a run's step counts all calls that log, by any code, and
    numbers of an earlier step would be lost.

    Args:
        run: the run of ``wandb.init(...)``; ``mode="offline"`` keeps it on this machine.

    Example:
        >>> from regard.integrations.wandb import WandbWriter
        >>> from types import SimpleNamespace
        >>> run = SimpleNamespace(log=print, define_metric=lambda name, **_: None)
        >>> WandbWriter(run)(100, {"attention/0/entropy": 1.5})  # run = wandb.init()
        {'attention/update': 100, 'attention/0/entropy': 1.5}
    """

    def __init__(self, run: Any) -> None:
        if not callable(getattr(run, "define_metric", None)):
            raise TypeError(f"run must be what wandb.init() gives, but is {type(run).__name__}")
        self._run = run
        run.define_metric(_AXIS, hidden=True)
        run.define_metric("attention/*", step_metric=_AXIS)

    def __call__(self, update: int, scalars: Mapping[str, float], /) -> None:
        """Log the numbers of an update."""
        self._run.log({_AXIS: update, **scalars})
