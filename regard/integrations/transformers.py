"""A `Monitor` in the `Trainer` of transformers."""

from __future__ import annotations

from typing import Any

from regard._extras import needing
from regard.lens.monitor import Monitor

with needing("transformers"):
    from transformers import TrainerCallback

__all__ = ["MonitorCallback"]


class MonitorCallback(TrainerCallback):  # type: ignore[misc] # its class is not typed
    """Reads a monitor's updates inside those of a `transformers.Trainer`.

    An update is one of the trainer's steps, whose number is the `global_step` before it, with all
    batches whose gradients it accumulates.

    Args:
        monitor: the monitor, of the trainer's model.

    Example:
        >>> import regard, torch
        >>> from regard.integrations.transformers import MonitorCallback
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> config = GPT2Config(n_embd=12, n_head=2, n_layer=1, vocab_size=31)
        >>> model = GPT2LMHeadModel(config)
        >>> callback = MonitorCallback(regard.Monitor(model, every=100))
        >>> # Trainer(model, args, train_dataset=..., callbacks=[callback]).train()
    """

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 - transformers' signature
        """Begin an update, before its first batch."""
        self.monitor.begin(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 - likewise
        """End the update, after the optimizer's step."""
        self.monitor.end()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 - likewise
        """Discard an update that was interrupted."""
        self.monitor.cancel()
