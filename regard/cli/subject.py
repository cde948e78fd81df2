"""What `regard explore` and `regard report` show: a model or a recording; and writing a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.device import device_of
from regard.cli.errors import MisuseError, user_errors
from regard.cli.model import SHIPPED, folder_of, weights_of
from regard.explorer import ExplorerError, ModelSubject, RecordingSubject, report
from regard.explorer.training import training_of
from regard.gpt import CheckpointError, load
from regard.record import RecordError
from regard.record import load as load_recording

if TYPE_CHECKING:
    from regard.explorer.subjects import Subject

__all__ = [
    "Live",
    "Shown",
    "one_name",
    "print_notes",
    "require_float",
    "subject_of",
    "write_report",
]

Shown = Annotated[
    str | None,
    typer.Argument(
        help="Folder of a recording; or a model, as --model names it.",
        metavar="[RECORDING_DIR | MODEL]",
    ),
]

Live = Annotated[
    bool,
    typer.Option(
        "--live",
        help="Put the model into the page, where it runs over any text; of at most 12 MB.",
    ),
]


def one_name(shown: str | None, model: str | None) -> str | None:
    """The name from the argument or from ``--model``; None where neither is set.

    Raises:
        MisuseError: both are set.
    """
    if shown is not None and model is not None:
        raise MisuseError(f"the folder is given twice: leave out {shown}, or --model")
    return shown if model is None else model


def require_float(*, live: bool, weights: str | None) -> None:
    """Refuse a page with a model in it, which computes in float32, where weights are to be int8.

    Raises:
        MisuseError: both are set.
    """
    if live and weights == "int8":
        raise MisuseError(
            f"--live puts the model into the page, which computes in float32, and --weights is "
            f"{weights}: leave out one"
        )


def subject_of(
    name: str | None, text: str | None, *, fetch: bool, device: str, weights: str | None = None
) -> ModelSubject | RecordingSubject:
    """Open a recording or a model; None takes the model that comes with regard.

    Args:
        name: the folder of either, or the model's name on the hub.
        text: what the model reads first.
        fetch: whether a model of the hub may be fetched.
        device: where it computes.
        weights: in what a model's matrices are kept, as for `regard.gpt.load`.

    Raises:
        MisuseError: there is neither, a text or weights are set for a recording, the device does
            not exist, or there are no such weights.
    """
    place = device_of(device)
    kept = weights_of(weights, place)
    folder = folder_of(name, fetch=fetch)
    with user_errors(CheckpointError, RecordError, ExplorerError, OSError):
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
    """Print what a reader of a model's first text should know, such as that it is cut."""
    if isinstance(subject, ModelSubject):
        _, _, run, _ = subject.first()
        for note in run.notes:
            typer.echo(note)


def _title(name: str | None, folder: Path | None) -> str:
    """A folder goes by its own name, a model of the hub by the one it has there."""
    if name is None or folder is None:
        return SHIPPED
    return folder.name if folder == Path(name) else name


def write_report(subject: Subject, path: Path, *, live: bool = False) -> str:
    """Write a report, and say where it is.

    Args:
        subject: what it shows.
        path: the file.
        live: whether the model is in it; see `regard.explorer.report`.

    Raises:
        MisuseError: it can't be computed or written.
    """
    try:
        size = report(subject, path, live=live)
    except FileExistsError as error:
        raise MisuseError(f"{error}; choose another --out FILE") from None
    except OSError as error:
        raise MisuseError(
            f"{path} cannot be written: {error.strerror}; choose another --out FILE"
        ) from None
    except (ExplorerError, RecordError) as error:
        raise MisuseError(str(error)) from error
    runs = "; the model runs in it, over any text" if live else ""
    return f"{path}: {size / 1e6:.2f} MB, opens offline in a browser{runs}"


def _is_recording(folder: Path) -> bool:
    return (folder / "recording.json").is_file()  # a damaged one, too: `regard.load` says so
