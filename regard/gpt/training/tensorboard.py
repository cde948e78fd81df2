"""A training run's numbers in TensorBoard."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from regard._extras import install

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from regard.gpt.training.metrics import Metrics


class TensorBoard:
    """A callback of `train` that writes every number of the metrics to TensorBoard's files.

    Args:
        folder: the folder to write to; made if it does not exist.

    Raises:
        ModuleNotFoundError: TensorBoard is not installed; the message says how to get it.

    Example:
        >>> from regard.gpt import TensorBoard, train
        >>> writer = TensorBoard("runs/mine")  # doctest: +SKIP
        >>> result = train("mine", callbacks=[writer])  # doctest: +SKIP
    """

    def __init__(self, folder: str | Path) -> None:
        if find_spec("tensorboard") is None:
            message = f"this needs the library tensorboard: {install('trackers')}"
            raise ModuleNotFoundError(message, name="tensorboard")
        self._folder = str(folder)
        self._writer: SummaryWriter | None = None

    def __call__(self, metrics: Metrics, /) -> None:
        """Write the numbers of an update; later ones, of before an interruption, are purged."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(self._folder, purge_step=metrics.step)
        for name, number in metrics.numbers().items():
            if name != "step":
                self._writer.add_scalar(name, number, metrics.step)
        if metrics.validation_loss is not None or metrics.step == metrics.steps:
            self._writer.flush()
