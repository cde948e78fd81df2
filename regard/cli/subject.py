"""The subject of `regard explore` and `regard report`: a model or a recording."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import typer

from regard.cli.device import device_of
from regard.cli.errors import MisuseError, user_errors
from regard.cli.model import open_model, with_options
from regard.errors import Error
from regard.page import ModelSubject, RecordingSubject
from regard.page.training import training_of
from regard.record import load

__all__ = ["print_notes", "subject_of"]


def subject_of(
    text: str | None,
    *,
    recording: Path | None,
    model: str | None,
    fetch: bool,
    device: str,
    dtype: str | None,
    weights: str | None,
    chat: bool,
    system: str | None,
    no_bos: bool,
) -> ModelSubject | RecordingSubject:
    """Open a recording, or a model; without either that which comes with regard.

    Args:
        text: the model's first text.
        recording: the folder of a recording.
        model: the model's name.
        fetch: whether a model of the hub may be downloaded.
        device: the device to compute on.
        dtype: the dtype of the weights.
        weights: the format of a model's matrices, as for `regard.gpt.load`.
        chat: whether a text is a message, which the model's template surrounds.
        system: what the system says there.
        no_bos: whether the tokenizer's own tokens are left out.

    Raises:
        MisuseError: if there is none, the device does not exist, or an option does not fit.
    """
    place = device_of(device)
    if recording is not None:
        _require_unset({"a text": text, "--model": model, "--dtype": dtype, "--weights": weights})
        flags = {"--fetch": fetch, "--chat": chat, "--system": system, "--no-bos": no_bos}
        _require_unset(flags)
        with user_errors(Error, OSError):
            kept = load(recording, device=place)
            return RecordingSubject(kept, title=recording.resolve().name)
    opened = open_model(model, fetch=fetch, device=place, dtype=dtype, weights=weights)
    folder = None if model is None else Path(model)
    with user_errors(Error, OSError, rewrite=with_options):
        return ModelSubject(
            opened.module,
            opened.tokenizer,
            title=opened.name,
            text=text,
            training=None if folder is None or not folder.is_dir() else training_of(folder),
            chat=chat,
            system=system,
            special=not no_bos,
        )


def _require_unset(options: Mapping[str, object]) -> None:
    for name, value in options.items():
        if value:
            raise MisuseError(f"a recording has no model, with which {name} goes; leave it out")


def print_notes(subject: ModelSubject | RecordingSubject) -> None:
    """Print notes on a model's first text, for example that it is cut."""
    if isinstance(subject, ModelSubject):
        run = subject.run(subject.about()["runs"][0])
        for note in run.notes:
            typer.echo(note)
