"""`regard explore`."""

import json
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.errors import MisuseError, telling
from regard.cli.text import read_text
from regard.gpt import CheckpointError, load
from regard.record import RecordError
from regard.record import load as load_recording

__all__ = ["explore"]


def explore(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="Folder of a model or a recording; none takes the model that comes with regard.",
            metavar="[MODEL_DIR | RECORDING_DIR]",
        ),
    ] = None,
    text: Annotated[str | None, typer.Option(help="Text that is open at first.")] = None,
    file: Annotated[
        Path | None, typer.Option(help="File whose text is open at first.", metavar="FILE")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 takes one that is free.", min=0, max=65535)
    ] = 0,
    *,
    open_page: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in the browser.")
    ] = True,
) -> None:
    """Show what every token attends to on a page, at any length, until interrupted.

    Examples:
    regard explore --text "The cat sat on the mat. The cat sat"

    regard explore runs/mine --file notes.txt
    """
    try:
        from regard.explorer import Explorer, ExplorerError, ModelSubject, RecordingSubject
    except ModuleNotFoundError as missing:
        raise MisuseError(str(missing)) from missing
    content = read_text(text, file)
    with telling(CheckpointError, RecordError, ExplorerError, OSError):
        if folder is not None and _is_recording(folder):
            if content is not None:
                raise MisuseError("a recording takes no text; leave out --text and --file")
            subject: ModelSubject | RecordingSubject = RecordingSubject(
                load_recording(folder), title=folder.name
            )
        else:
            title = "the model that comes with regard" if folder is None else folder.name
            subject = ModelSubject(*load(folder), title=title, text=content)
        explorer = Explorer(subject, host=host, port=port)
    typer.echo(f"{explorer.url}  (Ctrl-C ends)")
    if open_page:
        webbrowser.open(explorer.url)
    explorer.serve()


def _is_recording(folder: Path) -> bool:
    try:
        index = json.loads((folder / "recording.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(index, dict) and "format" in index
