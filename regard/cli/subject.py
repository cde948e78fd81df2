"""The subject of `regard explore` and `regard report`: a model or a recording."""

from __future__ import annotations

from pathlib import Path

import typer

from regard.cli.arguments import SHIPPED
from regard.cli.device import device_of
from regard.cli.errors import MisuseError, user_errors
from regard.cli.model import folder_of, weights_of
from regard.gpt import CheckpointError, load
from regard.page import ModelSubject, PageError, RecordingSubject
from regard.page.training import training_of
from regard.record import RecordError
from regard.record import load as load_recording

__all__ = [
    "one_name",
    "print_notes",
    "subject_of",
]


def one_name(shown: str | None, model: str | None) -> str | None:
    """Return the name from the argument or from ``--model``; None without either.

    Raises:
        MisuseError: if both are set.
    """
    if shown is not None and model is not None:
        raise MisuseError(f"the folder is given twice: leave out {shown}, or --model")
    return shown if model is None else model


def subject_of(
    name: str | None, text: str | None, *, fetch: bool, device: str, weights: str | None = None
) -> ModelSubject | RecordingSubject:
    """Open a recording or a model; None is the model that comes with regard.

    Args:
        name: the folder of either, or the model's name on the hub.
        text: the model's first text.
        fetch: whether a model of the hub may be downloaded.
        device: the device to compute on.
        weights: the format of a model's matrices, as for `regard.gpt.load`.

    Raises:
        MisuseError: if there is neither, a text or weights are given for a recording, the device
            does not exist, or `weights` is not supported.
    """
    place = device_of(device)
    kept = weights_of(weights, place)
    folder = folder_of(name, fetch=fetch)
    with user_errors(CheckpointError, RecordError, PageError, OSError):
        if folder is not None and _is_recording(folder):
            if text is not None:
                raise MisuseError("a recording takes no text; leave out --text and --file")
            if weights is not None:
                raise MisuseError("a recording has no model's weights; leave out --weights")
            return RecordingSubject(load_recording(folder, device=place), title=folder.name)
        training = None if folder is None else training_of(folder)
        model, tokenizer = load(folder, device=place, weights=kept)
        title = _title(name, folder)
        return ModelSubject(model, tokenizer, title=title, text=text, training=training)


def print_notes(subject: ModelSubject | RecordingSubject) -> None:
    """Print notes on a model's first text, for example that it is cut."""
    if isinstance(subject, ModelSubject):
        _, _, run, _ = subject.first()
        for note in run.notes:
            typer.echo(note)


def _title(name: str | None, folder: Path | None) -> str:
    """Return the folder's name, or the name of a model on the hub."""
    if name is None or folder is None:
        return SHIPPED
    return folder.name if folder == Path(name) else name


def _is_recording(folder: Path) -> bool:
    return (folder / "recording.json").is_file()  # may be damaged; `regard.load` checks it
