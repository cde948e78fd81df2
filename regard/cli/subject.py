"""The subject of `regard explore` and `regard report`: a model or a recording."""

from __future__ import annotations

from pathlib import Path

import click

from regard.cli.checks import Asked, with_options
from regard.cli.device import device_of
from regard.cli.errors import user_errors
from regard.cli.model import open_model
from regard.errors import Error
from regard.page import ModelSubject, RecordingSubject
from regard.page.training import training_of
from regard.record import load

__all__ = ["print_notes", "subject_of"]


def subject_of(asked: Asked) -> ModelSubject | RecordingSubject:
    """Open a recording, or a model; without either that which comes with regard.

    Raises:
        MisuseError: if it is damaged, the device does not exist, or an option does not fit.
    """
    place = device_of(asked.device)
    if asked.recording is not None:
        with user_errors(Error, OSError):
            kept = load(asked.recording, device=place)
            return RecordingSubject(kept, title=asked.recording.resolve().name)
    opened = open_model(
        asked.model, fetch=asked.fetch, device=place, dtype=asked.dtype, weights=asked.weights
    )
    folder = None if asked.model is None else Path(asked.model)
    with user_errors(Error, OSError, rewrite=with_options):
        return ModelSubject(
            opened.module,
            opened.tokenizer,
            title=opened.name,
            text=asked.text,
            training=None if folder is None or not folder.is_dir() else training_of(folder),
            chat=asked.chat,
            system=asked.system,
            special=not asked.no_bos,
        )


def print_notes(subject: ModelSubject | RecordingSubject) -> None:
    """Print notes on a model's first text, for example that it is cut."""
    if isinstance(subject, ModelSubject):
        run = subject.run(subject.about()["runs"][0])
        for note in run.notes:
            click.echo(note)
