"""A run's numbers in TensorBoard."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from regard._extras import install

if TYPE_CHECKING:
    from pathlib import Path

    from torch.utils.tensorboard import SummaryWriter

    from regard.gpt.training.metrics import Metrics


class TensorBoard:
    """A callback of `train` that writes every number of a report to TensorBoard's files.

    Args:
        folder: where to; made if need be.

    Raises:
        ModuleNotFoundError: TensorBoard is not installed; the message says how to get it.
    """

    def __init__(self, folder: str | Path) -> None:
        if find_spec("tensorboard") is None:
            message = f"this needs the library tensorboard: {install('tensorboard')}"
            raise ModuleNotFoundError(message, name="tensorboard")
        self._folder = str(folder)
        self._writer: SummaryWriter | None = None

    def __call__(self, report: Metrics, /) -> None:
        """Write the numbers of an update; those that a run before wrote of later ones go."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(self._folder, purge_step=report.step)
        for name, number in report.numbers().items():
            if name != "step":
                self._writer.add_scalar(name, number, report.step)
        if report.validation_loss is not None or report.step == report.steps:
            self._writer.flush()
