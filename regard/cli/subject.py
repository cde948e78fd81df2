"""What `regard explore` and `regard report` show: a model or a recording; and writing a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.device import device_of
from regard.cli.errors import MisuseError, user_errors
from regard.explorer import ExplorerError, ModelSubject, RecordingSubject, report
from regard.explorer.training import training_of
from regard.gpt import CheckpointError, load
from regard.record import RecordError
from regard.record import load as load_recording

if TYPE_CHECKING:
    from regard.explorer.subjects import Subject

__all__ = ["Folder", "Model", "one_folder", "subject_of", "write_report"]

Folder = Annotated[
    Path | None,
    typer.Argument(
        help="Folder of a model or a recording; by default the model that comes with regard.",
        metavar="[MODEL_DIR | RECORDING_DIR]",
    ),
]

Model = Annotated[
    Path | None,
    typer.Option(help="The same folder, as other commands name it.", metavar="DIR"),
]


def one_folder(folder: Path | None, model: Path | None) -> Path | None:
    """The folder from the argument or from ``--model``; None where neither is set.

    Raises:
        MisuseError: both are set.
    """
    if folder is not None and model is not None:
        raise MisuseError(f"the folder is given twice: leave out {folder}, or --model")
    return folder if model is None else model


def subject_of(
    folder: Path | None, text: str | None, device: str = "cpu"
) -> ModelSubject | RecordingSubject:
    """Open the folder of a model or of a recording; None takes the model that comes with regard.

    Args:
        folder: the folder.
        text: what the model reads first.
        device: where it computes.

    Raises:
        MisuseError: it holds neither, a text is set for a recording, or the device does not exist.
    """
    place = device_of(device)
    with user_errors(CheckpointError, RecordError, ExplorerError, OSError):
        if folder is not None and _is_recording(folder):
            if text is not None:
                raise MisuseError("a recording takes no text; leave out --text and --file")
            return RecordingSubject(load_recording(folder, device=place), title=folder.name)
        title = "the model that comes with regard" if folder is None else folder.name
        training = None if folder is None else training_of(folder)
        model, tokenizer = load(folder, device=place)
        return ModelSubject(model, tokenizer, title=title, text=text, training=training)


def write_report(subject: Subject, path: Path, *, option: str, start: str = "") -> str:
    """Write a report, and say where it is.

    Args:
        subject: what it shows.
        path: the file.
        option: the option that named it, for the cure.
        start: what the page opens with; see `regard.explorer.report`.

    Raises:
        MisuseError: it can't be computed or written.
    """
    try:
        size = report(subject, path, start=start)
    except FileExistsError as error:
        raise MisuseError(f"{error}; choose another {option}") from None
    except OSError as error:
        raise MisuseError(
            f"{path} cannot be written: {error.strerror}; choose another {option}"
        ) from None
    except (ExplorerError, RecordError) as error:
        raise MisuseError(str(error)) from error
    return f"{path}: {size / 1e6:.2f} MB, opens offline in a browser"


def _is_recording(folder: Path) -> bool:
    return (folder / "recording.json").is_file()  # a damaged one, too: `regard.load` says so
