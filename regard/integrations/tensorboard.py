"""A `Monitor`'s numbers in TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from regard._extras import needing

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

__all__ = ["TensorBoardWriter"]


class TensorBoardWriter:
    """A writer of a `regard.Monitor` that writes TensorBoard's files.

    Args:
        folder: the folder, created at the first update. Numbers of later updates, left by an
            interrupted training run, are no longer shown.

    Raises:
        ModuleNotFoundError: without TensorBoard, which the extra ``trackers`` installs.

    Example:
        >>> from regard.integrations.tensorboard import TensorBoardWriter
        >>> TensorBoardWriter("runs/mine")(100, {"attention/0/entropy": 1.5})  # doctest: +SKIP
    """

    def __init__(self, folder: str | Path) -> None:
        with needing("trackers"):
            import tensorboard  # noqa: F401 - only to fail if it is missing
        self._folder = str(folder)
        self._writer: SummaryWriter | None = None

    def __call__(self, update: int, scalars: Mapping[str, float], /) -> None:
        """Write the numbers of an update."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(self._folder, purge_step=update)
        for name, number in scalars.items():
            self._writer.add_scalar(name, number, update)
        self._writer.flush()
