"""The errors of a model's files, a corpus or a training run."""

from __future__ import annotations

from regard.errors import Error


class CheckpointError(Error, ValueError):
    """A model or training run is missing, damaged, or not the expected one.

    Example:
        >>> import tempfile
        >>> from regard.gpt import CheckpointError, load
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     try:
        ...         load(folder)
        ...     except CheckpointError as error:
        ...         print(str(error).partition(": ")[2].partition(";")[0])
        it has no config.json, tokenizer.json, model.safetensors
    """


class SaveError(Error, OSError):
    """A checkpoint could not be written, such as on a full disk; the previous one is intact.

    Example:
        >>> from regard.gpt import SaveError
        >>> issubclass(SaveError, OSError)  # so what handles a full disk handles it
        True
    """


class DivergedError(Error, ArithmeticError):
    """A loss or a gradient is NaN or infinite.

    Attributes:
        step: the update, counted from 1.
        starts: starts of its windows in the training text, in tokens.

    Example:
        >>> from regard.gpt import DivergedError
        >>> error = DivergedError("the loss is nan at update 7", step=7, starts=(0, 512))
        >>> error.step, error.starts
        (7, (0, 512))
    """

    def __init__(self, message: str, *, step: int, starts: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.step = step
        self.starts = starts
