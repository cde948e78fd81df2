"""A `Monitor` in the `Trainer` of Lightning."""

from __future__ import annotations

from typing import Any

from regard._extras import needing
from regard.lens.monitor import Monitor

with needing("trackers"):
    from lightning.pytorch import Callback

__all__ = ["MonitorCallback"]


class MonitorCallback(Callback):  # type: ignore[misc] # lightning need not be installed
    """Reads a monitor's updates inside those of a `lightning.Trainer`.

    An update covers one step of the optimizer, with all batches whose gradients it accumulates; its
    number is the trainer's `global_step` before it.

    Args:
        monitor: the monitor, of the `LightningModule` or of a model inside it.

    Example:
        >>> from regard.integrations.lightning import MonitorCallback  # doctest: +SKIP
        >>> Trainer(callbacks=[MonitorCallback(regard.Monitor(model))])  # doctest: +SKIP
    """

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor
        self._current: int | None = None

    def on_train_batch_start(self, trainer: Any, *batch: Any) -> None:  # noqa: ARG002 - Lightning's signature
        """Begin an update, before its first batch."""
        if self._current != trainer.global_step:
            self._current = trainer.global_step
            self.monitor.begin(trainer.global_step)

    def on_train_batch_end(self, trainer: Any, *batch: Any) -> None:  # noqa: ARG002 - likewise
        """End the update if the optimizer made a step."""
        if self._current is not None and trainer.global_step > self._current:
            self._current = None
            self.monitor.end()

    def on_train_end(self, *trainer: Any) -> None:  # noqa: ARG002 - likewise
        """Discard an update that was interrupted."""
        self._cancel()

    def on_exception(self, *trainer: Any) -> None:  # noqa: ARG002 - likewise
        """Likewise."""
        self._cancel()

    def _cancel(self) -> None:
        self._current = None
        self.monitor.cancel()
