"""`regard report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from regard._importing import importing
from regard.cli.arguments import (
    Chat,
    Device,
    Dtype,
    Fetch,
    Model,
    NoBos,
    RecordingFolder,
    System,
    Weights,
)
from regard.cli.checks import Asked, require_text
from regard.cli.errors import MisuseError
from regard.cli.parameters import Argument, Option
from regard.cli.text import read_text
from regard.errors import RecordError
from regard.page import PageError

if TYPE_CHECKING:
    from regard.page import ModelSubject, RecordingSubject

__all__ = ["report"]


def report(
    text: Annotated[str | None, Argument(help="Text to look into; - reads standard input.")] = None,
    file: Annotated[
        Path | None, Option(help="File with the text to look into.", metavar="FILE")
    ] = None,
    out: Annotated[
        Path | None,
        Option(
            help="File to write, report.html if none is named; one that is there is replaced. With "
            "--live a name without a suffix is a folder.",
            metavar="FILE",
        ),
    ] = None,
    model: Model = None,
    recording: RecordingFolder = None,
    device: Device = "cpu",
    dtype: Dtype = None,
    weights: Weights = None,
    *,
    live: Annotated[
        bool,
        Option(
            "--live",
            help="Put the model into the page, where it runs over any text: a file of at most "
            "12 MB, or a folder of at most 200 MB (in int8 as many parameters) for any static "
            "host.",
        ),
    ] = False,
    fetch: Fetch = False,
    chat: Chat = False,
    system: System = None,
    no_bos: NoBos = False,
) -> None:
    """Write the explorer's page as one HTML file that opens offline.

    Every weight is recomputed in the page, which says how exactly.

    With --live the model runs in it: type other texts, generate, switch heads off. A larger one
    is put into a folder, its matrices rounded to int8, or with --weights blocks as a GGUF has them.

    Examples:
    regard report "Tom had a red kite and a blue drum. Tom wanted the blue"

    regard report --model runs/mine --file notes.txt --out notes.html

    regard report --live --out live.html

    regard report --live --model smollm2 --out smollm2

    regard report --live --model smollm2 --weights blocks --out smollm2
    """
    if live and weights == "int8":
        raise MisuseError(
            "--live rounds a model to int8 where it needs to, and --weights is int8: leave out one"
        )
    if live and weights == "blocks" and out and out.suffix:
        raise MisuseError(
            f"--weights blocks goes into a folder, and --out is {out}: name it without a suffix"
        )
    if file and file.exists() and out and out.exists() and file.samefile(out):
        raise MisuseError(f"--out {out} is the text itself, which would be lost: name another")
    require_text("report", text, model)
    opened = read_text(text, file)
    asked = Asked(
        recording=recording,
        text=opened,
        model=model,
        fetch=fetch,
        device=device,
        dtype=dtype,
        weights=weights,
        chat=chat,
        system=system,
        no_bos=no_bos,
    )
    with importing():
        from regard.cli.subject import print_notes, subject_of

    subject = subject_of(asked)
    line = _write(subject, out or _default(subject, live=live), live=live)
    if opened is not None:
        print_notes(subject)
    click.echo(line)


def _default(subject: ModelSubject | RecordingSubject, *, live: bool) -> Path:
    """The file or folder that is written where none is named."""
    with importing():
        from regard.page import needs_folder

    return Path("report" if live and needs_folder(subject) else "report.html")


def _write(subject: ModelSubject | RecordingSubject, path: Path, *, live: bool) -> str:
    """Write a report, and return a line with its path and size."""
    with importing():
        from regard import page

    try:
        size = page.report(subject, path, live=live)
    except OSError as error:  # regard's own have no number, and the system's no such sentence
        why = f"{path} cannot be written: {error.strerror}" if error.errno else str(error)
        raise MisuseError(f"{why}; choose another --out FILE") from None
    except (PageError, RecordError) as error:
        raise MisuseError(str(error)) from error
    runs = "; the model runs in it, over any text" if live else ""
    if path.is_dir():
        return f"{path}: {size / 1e6:.0f} MB for any static host, or python -m http.server{runs}"
    return f"{path}: {size / 1e6:.2f} MB, opens offline in a browser{runs}"
