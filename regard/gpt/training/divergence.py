"""The error for a loss or a gradient that is NaN or infinite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite

from regard.gpt.errors import DivergedError
from regard.gpt.training.batches import Batch
from regard.gpt.training.checkpoints import TrainingRunFolder
from regard.gpt.training.config import TrainConfig

_NAMED = 8  # windows that an error names


def diverged(name: str, value: float, update: int, batch: Batch) -> DivergedError:
    """The error for a value of an update, counted from 1; it names the windows of the batch."""
    starts = tuple(batch.starts[batch.starts >= 0].tolist())
    named = ", ".join(map(str, starts[:_NAMED])) + (" …" if len(starts) > _NAMED else "")
    windows = f"{len(starts)} windows of {batch.ids.shape[1]} tokens that begin at token {named}"
    return DivergedError(
        f"the {name} is {value} at update {update}, whose batch has {windows} of the training "
        f"text, and {len(batch.starts) - len(starts)} random spans",
        step=update,
        starts=starts,
    )


def require_finite(loss: float, norm: float, update: int, batch: Batch) -> None:
    """Require that an update, counted from 1, has a finite loss and a finite gradient.

    Raises:
        DivergedError: it has not.
    """
    for name, value in (("loss", loss), ("norm of the gradient", norm)):
        if not isfinite(value):
            raise diverged(name, value, update, batch)


@contextmanager
def divergence_advice(folder: TrainingRunFolder, config: TrainConfig) -> Iterator[None]:
    """Add to a `DivergedError` which checkpoint is left and what to change."""
    try:
        yield
    except DivergedError as error:
        raise DivergedError(
            f"{error}; {folder.describe_latest()}; train anew with a lower learning_rate than "
            f"{config.learning_rate} or a longer warmup than {config.warmup}",
            step=error.step,
            starts=error.starts,
        ) from None
