"""Callbacks of a training run: functions of the metrics, contexts of updates, TensorBoard."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from regard._extras import install
from regard.gpt.training.metrics import Metrics

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class Callback(Protocol):
    """A function of the metrics, called by `train` for every update.

    On a GPU the calls are made every `TrainConfig.log_every` updates, for each of them in order;
    the model is then that of the last.

    Example:
        >>> from regard.gpt import Callback, Metrics
        >>> def stop_if_worse(metrics: Metrics) -> None:
        ...     if metrics.validation_loss is not None and metrics.validation_loss > 9:
        ...         raise RuntimeError(f"update {metrics.step}: {metrics.validation_loss:.2f} nats")
        >>> callback: Callback = stop_if_worse  # train(..., callbacks=[stop_if_worse])
    """

    def __call__(self, metrics: Metrics, /) -> object:
        """Read the metrics; `metrics.model` may be called."""


@runtime_checkable
class UpdateObserver(Protocol):
    """A callback in whose context `train` makes each update, such as a `regard.Monitor`."""

    def update(self, number: int, /) -> AbstractContextManager[object]:
        """Return a context manager for an update; `number` counts from 0."""


class Observers:
    """The observers among some callbacks."""

    def __init__(self, callbacks: Sequence[object]) -> None:
        self._observers = [one for one in callbacks if isinstance(one, UpdateObserver)]
        self._error: BaseException | None = None

    @contextmanager
    def update(self, number: int) -> Iterator[None]:
        """Enter the context of each; an error at the exit after a complete update is deferred.

        Raised immediately, it would prevent the update's metrics and checkpoint.
        """
        contexts = ExitStack()
        try:
            for observer in self._observers:
                contexts.enter_context(observer.update(number))
            yield
        except BaseException:
            contexts.__exit__(*sys.exc_info())
            raise
        try:
            contexts.close()
        except BaseException as error:  # noqa: BLE001 - also an interrupt
            self._error = error

    def raise_error(self) -> None:
        """Raise the error that `update` deferred."""
        if self._error is not None:
            raise self._error


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
        """Write the numbers of an update; later ones from before an interruption are purged."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(self._folder, purge_step=metrics.step)
        for name, number in metrics.numbers().items():
            if name != "step":
                self._writer.add_scalar(name, number, metrics.step)
        if metrics.validation_loss is not None or metrics.step == metrics.steps:
            self._writer.flush()
